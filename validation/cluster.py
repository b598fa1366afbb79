"""A mini study on a real Slurm of one node: requeued, killed, moved; the bits of a local run.

``make test-cluster`` installs Debian's slurm-wlm and munge where they are missing, and runs this.
Its own munged, slurmctld and slurmd keep their state in a temporary folder, and end with it.
The two GPUs are pretended: Slurm hands them out, nothing computes on them.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from r2no import storage

STUDY = ["--preset", "mini", "--system", "cylinder", "--backbone", "fno", "--source", "pretrained"]
STUDY += ["--members", "2"]
ASKED = ["--partition", "all", "--gpus", "1", "--cpus", "1", "--memory", "2", "--minutes", "20"]
PAIR = "cylinder-fno-pretrained"
_PORTS = 17817, 17818
_CONFIG = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
StateSaveLocation={state}/controller
SlurmdSpoolDir={state}/daemon
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.pid
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=6000 Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def main() -> None:
    """Run the scenario; raises where something is not as it should be."""
    begin = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="r2no-cluster-") as folder, _slurm(Path(folder)):
        place = Path(folder)
        r2no("bench", "run", *STUDY, "--out", place / "here")
        disturbed_run(place)
        other_node(place)
        two_processes(place)
    print(f"1 passed, 0 failed, in {time.monotonic() - begin:.0f} s")


def disturbed_run(place: Path) -> None:
    """Array, requeue in the middle, a kill, dependencies; then the same bits as here."""
    out = place / "slurm"
    submit(out)
    wait_for("a member runs", lambda: state(out, "member-0") == "running")
    number = storage.read_json(out / "jobs" / "submitted.json")[f"{PAIR}.member-0"]
    subprocess.run(["scontrol", "requeue", number], check=True)
    wait_for("fit and test run", lambda: state(out, "pair") == "running")
    os.kill(storage.read_json(out / "jobs" / f"{PAIR}.pair.json")["process"], signal.SIGKILL)
    wait_for("nothing is queued", lambda: not queue())
    assert storage.read_json(out / "jobs" / f"{PAIR}.member-0.json")["restarts"] >= 1
    assert state(out, "pair") == "running"  # its last word
    assert "lost" in r2no("bench", "status", "--run", out)
    assert not (out / "table.md").exists()  # taken out of the queue with what it needs
    submit(out)
    wait_for("the table is there", lambda: (out / "table.md").exists() and not queue())
    same_bits(place / "here", out)
    print("array, requeue, kill and dependencies: the bits of a local run")


def other_node(place: Path) -> None:
    """Half-done work, copied with other time stamps, goes on with another processor's rounding."""
    moved = place / "moved"
    shutil.copytree(place / "slurm", moved, copy_function=shutil.copyfile)
    for path in (*moved.glob("results/*"), *moved.glob("jobs/*.json"), moved / "table.md"):
        path.unlink()
    (adapted,) = (moved / "adapt").iterdir()
    shutil.rmtree(adapted / "model.r2no")
    shutil.rmtree(adapted / "work" / "repair-43")
    kept = (adapted / "work" / "repair-42" / "best.safetensors").read_bytes()
    os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
    try:
        submit(moved)
        wait_for("the table is there", lambda: (moved / "table.md").exists() and not queue())
    finally:
        del os.environ["ATEN_CPU_CAPABILITY"]
    assert (adapted / "work" / "repair-42" / "best.safetensors").read_bytes() == kept
    near(place / "here", moved, 1e-3)
    print("copied data and another processor: goes on")


def two_processes(place: Path) -> None:
    """Jobs of two processes, which share every step."""
    out = place / "two"
    submit(out, "--processes", "2", "--gpus", "2")
    wait_for("the table is there", lambda: (out / "table.md").exists() and not queue())
    near(place / "here", out, 2e-2)
    print("jobs of two processes: done")


def submit(out: Path, *more: str) -> None:
    r2no("bench", "submit", *STUDY, *ASKED, *more, "--out", out)


def state(out: Path, job: str) -> str:
    path = out / "jobs" / f"{PAIR}.{job}.json"
    return str(storage.read_json(path)["state"]) if path.exists() else ""


def queue() -> str:
    found = subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True)
    return found.stdout


def wait_for(what: str, reached: Callable[[], bool], *, within: float = 300) -> None:
    """Look again and again, with a limit."""
    last = time.monotonic() + within
    while not reached():
        if time.monotonic() > last:
            raise AssertionError(f"Not within {within:g} s: {what}. Queue:\n{queue()}")
        time.sleep(0.2)


def same_bits(first: Path, second: Path) -> None:
    """Scores, weights and forecasts of the source are the same, to the last bit."""
    one, two = (storage.read_json(path / "results" / f"{PAIR}.json") for path in (first, second))
    assert one["readouts"] == two["readouts"]
    table = r2no("bench", "table", "main", "--run", first)
    assert table.rstrip() == (second / "table.md").read_text().rstrip()
    names = [p.relative_to(first) for p in first.glob("adapt/*/**/*") if p.suffix == ".safetensors"]
    names += [path.relative_to(first) for path in first.glob("adapt/*/**/*.npy")]
    different = [n for n in names if (first / n).read_bytes() != (second / n).read_bytes()]
    assert names
    assert not different, different


def near(first: Path, second: Path, tolerance: float) -> None:
    """RMSE of the model is the same but for rounding, which training amplifies."""
    one, two = (storage.read_json(path / "results" / f"{PAIR}.json") for path in (first, second))
    rmse = [found["readouts"]["r2no"]["rmse"] for found in (one, two)]
    assert abs(rmse[0] - rmse[1]) <= tolerance * rmse[0], rmse


def r2no(*arguments: object) -> str:
    command = [sys.executable, "-m", "r2no", *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@contextlib.contextmanager
def _slurm(place: Path) -> Iterator[None]:
    """A cluster of this machine, whose daemons end with the block."""
    state = place / "state"
    for name in ("controller", "daemon"):
        (state / name).mkdir(parents=True)
    host = socket.gethostname().split(".")[0]
    devices = "/dev/tty[0-1]" if Path("/dev/tty1").exists() else "/dev/null,/dev/zero"
    (state / "gres.conf").write_text(f"NodeName={host} Name=gpu File={devices}\n")
    values = {"host": host, "state": state, "controller": _PORTS[0], "daemon": _PORTS[1]}
    (state / "slurm.conf").write_text(_CONFIG.format(**values, cores=os.cpu_count()))
    key = state / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    os.environ["SLURM_CONF"] = str(state / "slurm.conf")
    files = {"key-file": key, "socket": state / "munge.socket", "pid-file": state / "munge.pid"}
    files |= {"log-file": state / "munge.log", "seed-file": state / "munge.seed"}
    munge = ["munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in files.items())]
    started = []
    try:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            log = (state / f"{command[0]}.out").open("w")
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
            time.sleep(1)
        wait_for("Slurm answers", lambda: _idle(host), within=60)
        yield
    finally:
        subprocess.run(["scancel", "--me"], check=False, capture_output=True)
        for daemon in reversed(started):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
        del os.environ["SLURM_CONF"]


def _idle(host: str) -> bool:
    found = subprocess.run(["sinfo", "-h", "-n", host, "-o", "%T"], capture_output=True, text=True)
    return found.stdout.strip() == "idle"


if __name__ == "__main__":
    main()
