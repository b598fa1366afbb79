"""Full disks, read-only folders and odd paths, for every writer.

    python -m validation.attacks.disk [--sizes 6]

A writer that cannot write must end in a named error and leave what was there before. The full disk
is a limit on the size of files and, for root on Linux, also a small file system of its own; the
read-only folder needs the latter.
"""

import argparse
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from validation.attacks.common import SETTINGS, Tally, run_script, toy_model, windows, write_npz
from validation.attacks.processes import Child, digest, fork, is_named, own_workspace, r2no

import r2no as library
from r2no import replacing, storage
from r2no.adaptation import AdaptedModel, write_predictions
from r2no.backbones.formats import read_checkpoint, write_benchmark
from r2no.realpdebench import write_tiny
from r2no.report import write_report
from r2no.training import cached_source, save_operator

#: A writer gets the place of its output.
Writer = Callable[[Path], object]
ODD = (
    "x[/b]",
    "[bold]y",
    "with space",
    "ünï-日本",
    "quo'te",
    'quo"te',
    "a%20b",
    "tab\tin",
    "$HOME",
    "{x}",
)


def writers(model: AdaptedModel, artifact: Path, data: Path) -> dict[str, Writer]:
    """All of them, by the name of their output."""
    program = model.export(artifact.parent / "program.pt2").read_bytes()
    checkpoint = save_operator(model.source, artifact.parent / "source.safetensors", backbone="fno")

    def forecast(out: Path) -> None:
        write_predictions(model, library.data.open(data), out, overwrite=True)

    def adapt(out: Path) -> None:
        library.adapt(
            model.source, windows(range(2)), windows(range(10, 14)), settings=SETTINGS, folder=out
        )

    return {
        "model.r2no": model.save,
        "f.nc": forecast,
        "f.zarr": forecast,
        "work": adapt,
        "cache": lambda out: cached_source(model.source, windows(range(6)), out, batch_size=5),
        "report.html": lambda out: write_report(artifact, out),
        "results.json": lambda out: storage.write_json(out, list(range(20_000))),
        "program.pt2": lambda out: storage.write_bytes(out, program),
        "weights.pth": lambda out: write_benchmark(read_checkpoint(checkpoint), out),
        "weights.safetensors": lambda out: save_operator(model.source, out, backbone="fno"),
        "tiny": lambda out: write_tiny(out, ["cylinder"], frames=45, layouts=["arrow", "hdf5"]),
    }


def judge(tally: Tally, child: Child, output: Path, old: dict[str, str], detail: str) -> None:
    """A named error with the old output as it was, or success."""
    code = child.wait()
    if code == 0:
        tally.add("right")
    elif code < 0 or not is_named(child, code):
        tally.add("raw", f"{detail}: code {code}: {child.text()[-300:]}")
    elif {name: value for name, value in digest(output).items() if name in old} != old:
        tally.add("lost", detail)
    else:
        tally.add("refused")


def limited(size: int, action: Callable[[], object]) -> None:
    """Run ``action`` while no file may grow beyond ``size`` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    action()


def full(tally: Tally, found: dict[str, Writer], work: Path, sizes: int) -> None:
    """Each writer over its own earlier output, with less and less room."""
    for name, write in found.items():
        output = work / "full" / name
        old = prepared(write, output)
        largest = max(p.stat().st_size for p in [output, *output.rglob("*")] if p.is_file())
        for number in range(sizes):
            size = number * largest // sizes
            fresh = work / "full" / f"new-{number}-{name}"
            for place, before in ((output, old), (fresh, {})):
                child = fork(lambda p=place, s=size, w=write: limited(s, lambda: w(p)))
                judge(tally, child, place, before, f"{name} with {size} bytes")
        replacing.remove(output)


def prepared(write: Writer, output: Path) -> dict[str, str]:
    """Write an output, and say what of it must survive: not the work that a run may go on with."""
    child = fork(lambda: write(output))
    if child.wait():
        raise RuntimeError(f"`{output}` cannot be written at all: {child.text()}")
    return {} if output.name in ("work", "cache") else digest(output)


@contextmanager
def mounted(size: str) -> Iterator[Path | None]:
    """A small file system, if we may mount one."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
            capture_output=True,
            check=False,
        ) if shutil.which("mount") else None  # fmt: skip
        if run is None or run.returncode:
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def on_small_disks(
    found: dict[str, Writer],
) -> Iterator[tuple[str, Writer, Path, Path, dict[str, str]]]:
    """Each writer with a disk of its own, its output there, and what of it must survive."""
    for name, write in found.items():
        with mounted("64m") as disk:
            if disk is None:
                return
            output = disk / "out" / name
            yield name, write, disk, output, prepared(write, output)


def really_full(tally: Tally, found: dict[str, Writer]) -> None:
    """Each writer on a disk that its output has filled but for a rest."""
    for name, write, disk, output, old in on_small_disks(found):
        for rest in (0, 4096, 40_000):
            room = shutil.disk_usage(disk).free
            with (disk / "ballast").open("wb") as file:
                file.write(b"\0" * max(room - rest, 0))
            child = fork(lambda o=output, w=write: w(o))
            judge(tally, child, output, old, f"{name} with {rest} bytes left")
            child = fork(lambda o=disk / f"new-{name}", w=write: w(o))
            judge(tally, child, disk / f"new-{name}", {}, f"new {name} with {rest} bytes left")
            (disk / "ballast").unlink()


def read_only(tally: Tally, found: dict[str, Writer]) -> None:
    """Each writer over its output on a disk that became read-only."""
    for name, write, disk, output, old in on_small_disks(found):
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for place, before in ((output, old), (disk / "new" / name, {})):
            child = fork(lambda p=place, w=write: w(p))
            judge(tally, child, place, before, f"read-only {name}")


def odd(tally: Tally, found: dict[str, Writer], work: Path, artifact: Path, data: Path) -> None:
    """Odd names, and places below a file; library and commands."""
    (work / "file").write_text("x")
    for name, write in found.items():
        below = work / "file" / name
        judge(tally, fork(lambda b=below, w=write: w(b)), below, {}, f"{below}")
        place = work / "odd" / ODD[len(name) % len(ODD)] / name
        judge(tally, fork(lambda p=place, w=write: w(p)), place, {}, f"{place}")
    config = own_workspace(work, epochs=1)
    for name in ODD:
        for arguments in (
            ["predict", artifact, data, "--out", work / "odd" / f"{name}.nc"],
            ["adapt", config, "--out", work / "odd" / name],
            ["inspect", work / "odd" / name / "model.r2no"],
            ["report", artifact, "--out", work / "odd" / f"{name}.html"],
        ):
            child = r2no(*arguments)
            judge(tally, child, work / "odd" / name, {}, f"{arguments}")
    if (work / "file").read_text() != "x":
        tally.add("lost", "a file that was taken for a folder")


def attack(options: argparse.Namespace) -> list[Tally]:
    """All writers under all circumstances."""
    torch.set_num_threads(1)
    tallies = [
        Tally("disk full: a limit on the size of files"),
        Tally("disk full: a small file system"),
        Tally("read-only file system"),
        Tally("odd paths, below a file"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model = toy_model()
        artifact, data = model.save(work / "model.r2no"), write_npz(work / "data.npz")
        found = writers(model, artifact, data)
        full(tallies[0], found, work, options.sizes)
        really_full(tallies[1], found)
        read_only(tallies[2], found)
        odd(tallies[3], found, work, artifact, data)
    for tally in tallies:
        if not tally.counts:
            tally.attack += " (skipped: may not mount one)"
    return tallies


if __name__ == "__main__":
    run_script(attack, sizes=6)
