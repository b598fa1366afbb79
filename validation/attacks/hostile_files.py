"""Hostile files through every way in: refused by name, in a moment, and no code runs.

    python -m validation.attacks.hostile_files [--only TEXT]

Each trial is a process of its own. Prints a table; ends with 1 if a trial ended in anything but a
named error or an opened file, ran code, took more than 2 s (over importing) or 200 MB.
"""

import argparse
import contextlib
import io
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import netCDF4  # noqa: F401 - imports that commands make late, before trials are timed
import torch
import zarr  # noqa: F401
from typer.testing import CliRunner
from validation.attacks import hostile_makers as make
from validation.attacks.optional import OPTIONAL

import r2no
import r2no.realpdebench.protocol.run
import r2no.report
import r2no.runs
from r2no.cli.main import app
from r2no.data.window import Fields
from r2no.operators.forecast_reading import Wanted, open_forecasts
from r2no.realpdebench.files.index import load_pt
from r2no.training import load_operator

SECONDS, MEGABYTES = 2.0, 200.0
_KILLED_AFTER = 20.0
_ADDRESSES = 24 * 2**30  # so that a failed trial does not take the machine down

H, Z, N = make.hdf5, make.zarr, make.netcdf
FIELD = ("time", "y", "x")
FIELDS = Fields((3, 3), 2, 2, ("u",), (0,))
DATA = {
    "HDF5 of 1e8 x 64 x 64": H("x.h5", make.giant_field),
    "HDF5, coordinate of 8 GB": H("x.h5", make.giant_coordinate),
    "HDF5, packed chunk of 512 MB": H("x.h5", make.giant_packed_chunk),
    "HDF5, chunk beyond the array": H("x.h5", make.giant_chunk_of_little),
    "HDF5, external storage": H("x.h5", make.external_storage),
    "HDF5, external link": H("x.h5", make.external_link),
    "HDF5, virtual data set": H("x.h5", make.virtual),
    "HDF5, loop of soft links": H("x.h5", make.soft_loop),
    "HDF5, cycle of groups": H("x.h5", make.group_cycle),
    "HDF5, 500 groups deep": H("x.h5", make.deep_groups),
    "HDF5, 25,000 groups": H("x.h5", make.many_groups),
    "HDF5, 100,000 trajectories": H("x.h5", make.many_trajectories),
    "NetCDF of 1e8 x 64 x 64": N("x.nc", {"time": make.GIANT, "y": 64, "x": 64}, u=FIELD),
    "NetCDF, coordinate of 8 GB": N(
        "x.nc", {"time": 10**9, "y": 4, "x": 4}, u=FIELD, time=("time",)
    ),
    "NetCDF 3 of 1e8 x 64 x 64": make.classic_giant,
    "NetCDF, external storage": H("x.nc", make.external_storage),
    "NetCDF, external link": H("x.nc", make.external_link),
    "NetCDF, virtual data set": H("x.nc", make.virtual),
    "NetCDF, loop of soft links": H("x.nc", make.soft_loop),
    "NetCDF, cycle of groups": H("x.nc", make.group_cycle),
    "npy, header beyond the file": make.npy((make.GIANT, 64, 64, 2)),
    "npy, header beyond 2^64": make.npy((2**40, 2**40, 4, 4)),
    "npy, negative shape": make.npy((-4, -4, 4, 4)),
    "npy, text for a type": make.npy((4, 4, 4, 2), "<zz"),
    "npy that is an npz": make.npy_that_is_npz,
    "npz, header beyond its content": make.npz_with_lying_header,
    "npz, 21 GB of zeros": make.npz_bomb,
    "Zarr, time of 1e9 fill values": Z(time=((10**9,), (10**9,), ("time",))),
    "Zarr, 1e6 chunks of one value": Z(time=((10**6,), (1,), ("time",))),
    "Zarr 3 of 1e8 x 64 x 64": make.zarr3,
    "Zarr, unknown codec": Z(make.edit(compressor={"id": "run_me"})),
    "Zarr, objects without codec": Z(make.edit(dtype="|O")),
    "Zarr, chunk linked to /etc/passwd": Z(make.link_outside),
    "Zarr, folder linked to /etc": Z(make.linked_folder),
    "Zarr, chunk that is a pipe": Z(make.chunk_that_is_a_pipe),
    "Zarr, attributes 100,000 deep": Z(make.deep_attributes),
    "Zarr, chunk that does not unpack": Z(make.broken_chunk),
    "Zarr, shape that is none": Z(make.edit(shape="many")),
    **{f"pipe {name}": make.pipe(name) for name in ("x.npy", "x.nc", "x.h5", "x.npz", "x.zarr")},
    **{f"/dev/zero as {name}": make.device(name) for name in ("x.npy", "x.nc", "x.h5")},
    **{f"folder {name}": make.folder_named(name) for name in ("x.npy", "x.nc", "x.h5", "x.zarr")},
    "link to itself": make.link_loop("x.npy"),
}
WEIGHTS = {
    "expanded tensor of 40 GB": make.torch_file(make.expanded),
    "expanded tensor of 40 GB, old format": make.torch_file(make.expanded, legacy=True),
    "tensor that overlaps itself": make.torch_file(make.overlapping),
    "lists that double 40 times": make.torch_file(make.laughs),
    "lists 200 deep": make.torch_file(make.nested),
    "bytearray of 40 GB": make.with_pickle(make.HUNGRY),
    "storage beyond its record": make.lying_storage,
    "21 GB of packed pickle": make.packed_weights,
    "safetensors, header of 2^63 bytes": make.safetensors("{}", 2**63),
    "safetensors, header of 90 MB": make.safetensors("{}", 90 * 10**6),
    "safetensors, header 100,000 deep": make.safetensors('{"__metadata__":' + "[" * 100_000),
    "safetensors, notes 100,000 deep": make.safetensors(
        '{"__metadata__":{"r2no":"' + "[" * 100_000 + '"}}'
    ),
    "safetensors, tensor of 40 GB": make.safetensors(
        '{"w":{"dtype":"F32","shape":[100000,100000],"data_offsets":[0,40000000000]}}'
    ),
    "pipe x.pt": make.pipe("x.pt"),
    "pipe x.safetensors": make.pipe("x.safetensors"),
    "/dev/zero as x.pt": make.device("x.pt"),
    "folder x.pt": make.folder_named("x.pt"),
}
MANIFESTS = {
    "JSON 100,000 deep": make.manifest("[" * 100_000),
    "JSON of 40 MB of lists": make.manifest("[" + "[]," * 13_000_000 + "1]"),
    "JSON of 300 MB": make.manifest('"' + "a" * 300_000_000 + '"'),
    "JSON with NaN": make.manifest('{"files": {}, "step": NaN}'),
    "JSON with 1e999": make.manifest('{"files": {}, "step": 1e999}'),
    "JSON with a name twice": make.manifest('{"files": {}, "files": {}}'),
    "JSON with a number of 10,000 digits": make.manifest('{"files": ' + "9" * 10_000 + "}"),
    "JSON with half a character": make.manifest('{"files": {"\\ud800": 1}}'),
    "JSON that is a list": make.manifest("[]"),
    "pipe manifest.json": make.piped_manifest,
}
CONFIGS = {
    "YAML 100,000 deep": make.text("x.yaml", "a: " + "[" * 100_000),
    "YAML of aliases": make.text(
        "x.yaml",
        "a0: &a0 [1, 2]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
    ),
    "YAML of 50 MB": make.text("x.yaml", "a: 1\n" * 10**7),
    "YAML with a name twice": make.text("x.yaml", "data: {path: x}\ndata: {path: y}\n"),
    "YAML, date that is none": make.text("x.yaml", "data: 2001-99-99\n"),
    "pipe x.yaml": make.pipe("x.yaml"),
    "/dev/zero as x.yaml": make.device("x.yaml"),
    "folder x.yaml": make.folder_named("x.yaml"),
}

STATE = {"model_state_dict": {"w": torch.zeros(3)}}
CANARIES = {
    "canary": make.torch_file(make.Canary),
    "canary, old format": make.torch_file(make.Canary, legacy=True),
    "canary among weights": make.torch_file({"w": torch.zeros(3), "x": make.Canary()}),
    "canary beside weights": make.torch_file({**STATE, "x": make.Canary()}),
    "canary in history": make.torch_file({**STATE, "iteration": make.Canary()}),
    "canary in an npy": make.npy_of_objects,
    "canary in an npz": make.npz_of_objects,
    "canary behind a Zarr codec": Z(make.pickled_chunk),
    "canary in YAML": make.yaml_of_python,
    **{
        f"canary as x.{suffix}": make.bare_pickle(f"x.{suffix}")
        for suffix in ("pth", "pt2", "safetensors", "npy", "npz", "nc", "h5", "zarr", "yaml")
    },
}


def command(*words):
    """Run a command in this process; its errors are raised."""

    def run(path):
        arguments = [str(path) if word == "PATH" else word for word in words]
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception

    return run


def load_checkpoint(path):
    r2no.backbones.load_checkpoint(torch.nn.Linear(3, 3), path)


OF_DATA = {
    "inspect": command("inspect", "PATH"),
    "data.open": lambda path: r2no.data.open(path).describe(),
    "forecasts": lambda path: open_forecasts(path, Wanted(("u",), FIELDS)),
}
OF_WEIGHTS = {
    "inspect": command("inspect", "PATH"),
    "operators.read_weights": r2no.operators.read_weights,
    "backbones.load_checkpoint": load_checkpoint,
    "realpdebench": load_pt,
}
OF_ARTIFACTS = {
    "inspect": command("inspect", "PATH"),
    "load": r2no.load,
    "report": command("report", "PATH", "--out", "/dev/null/x.html"),
    "evaluate": command("evaluate", "PATH"),
}
OF_CONFIGS = {"adapt": command("adapt", "PATH"), "doctor": command("doctor", "PATH")}
OTHERS = {"load_operator": load_operator, "from_exported": r2no.operators.from_exported}
GROUPS = {
    "data": (DATA, OF_DATA),
    "weights": (WEIGHTS, OF_WEIGHTS),
    "manifests": (MANIFESTS, OF_ARTIFACTS),
    "configs": (CONFIGS, OF_CONFIGS),
    "canaries": (CANARIES, {**OF_DATA, **OF_WEIGHTS, **OF_CONFIGS, **OTHERS}),
}


def memory(name):
    """A number of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def attempt(enter, path, report):
    """In the child: one trial, its outcome written to ``report``."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, start = memory("VmRSS"), time.perf_counter()
    note = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            enter(path)
        outcome = "opened"
    except r2no.errors.R2NOError as error:
        outcome, note = "refused", type(error).__name__
    except BaseException as error:
        outcome, note = "raw", f"{type(error).__name__}: {str(error)[:80]}"
    seconds, more = time.perf_counter() - start, memory("VmHWM") - before
    os.write(report, f"{outcome}\t{seconds:.2f}\t{max(more, 0):.0f}\t{note}".encode())


def trial(enter, path):
    """One trial in a process of its own: outcome, seconds, megabytes, the error's name."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            attempt(enter, path, write)
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + _KILLED_AFTER
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.01)
    with os.fdopen(read) as stream:
        found = stream.read().split("\t")
    if len(found) != 4:
        return "raw", _KILLED_AFTER, 0.0, "died or was killed"
    return found[0], float(found[1]), float(found[2]), found[3]


COMMANDS = {
    "inspect": ["inspect", "x.npy"],
    "predict": ["predict", "x.r2no", "x.npy"],
    "evaluate": ["evaluate", "x.r2no"],
    "doctor": ["doctor", "x.yaml"],
    "report": ["report", "x.r2no"],
    "adapt": ["adapt", "x.yaml"],
}


def run_in_hostile_folder(folder, arguments):
    """``python -m r2no`` where every package that is not installed can be imported."""
    for name in OPTIONAL.split():
        (folder / f"{name}.py").write_text("import os; os.mkdir(os.environ['R2NO_CANARY'])\n")
    config = "data: {path: x.npy, history: 2, horizon: 1}\nsource: {forecasts: x.npy}\n"
    (folder / "x.yaml").write_text(config)
    make.npy((12, 4, 4, 2), content=bytes(12 * 4 * 4 * 2 * 4))(folder)
    make.manifest("{}")(folder)
    done = subprocess.run(
        [sys.executable, "-m", "r2no", *arguments], cwd=folder, capture_output=True, text=True
    )
    if "Traceback" in done.stderr:
        return "raw"
    return "refused" if done.returncode else "opened"


def trials(only):
    canary = Path(os.environ["R2NO_CANARY"])
    for group, (files, entries) in GROUPS.items():
        for name, maker in files.items():
            for entry, enter in entries.items():
                if only not in f"{name} {entry}":
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    path = maker(Path(folder))
                    outcome, seconds, more, note = trial(enter, path)
                if canary.exists():
                    canary.rmdir()
                    outcome = "code run"
                yield group, name, entry, outcome, seconds, more, note
    for entry, arguments in COMMANDS.items():
        if only not in f"working folder {entry}":
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_in_hostile_folder(Path(folder), arguments)
        if canary.exists():
            canary.rmdir()
            outcome = "code run"
        yield "working folder", "packages in it", entry, outcome, 0.0, 0.0, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="Trials whose name holds this text.")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    for warm in ("open", "inspect"):  # imports that the first file would pay for
        with tempfile.TemporaryDirectory() as folder:
            for maker in (N("x.nc", {"time": 4, "y": 4, "x": 4}, u=FIELD), Z()):
                path = maker(Path(folder))
                command("inspect", "PATH")(path) if warm == "inspect" else r2no.data.open(path)
    print("| file | entry | outcome | s | MB |\n| --- | --- | --- | --- | --- |")
    found = []
    for one in trials(only):
        _, name, entry, outcome, seconds, more, note = one
        said = f"{outcome}, {note}" if note else outcome
        print(f"| {name} | {entry} | {said} | {seconds:.2f} | {more:.0f} |", flush=True)
        found.append(one)
    bad = [one for one in found if is_bad(*one)]
    print_summary(found)
    print(f"\n{len(found)} trials, {len(bad)} bad.", *bad, sep="\n")
    sys.exit(1 if bad else 0)


def is_bad(_group, _name, _entry, outcome, seconds, more, _note):
    return outcome in ("raw", "code run") or seconds > SECONDS or more > MEGABYTES


def print_summary(found):
    """A line for each group: how trials ended, and the longest and largest."""
    print("\n| files | trials | refused | opened | raw | code run | s, at most | MB, at most |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for group in dict.fromkeys(one[0] for one in found):
        rows = [one for one in found if one[0] == group]
        ends = [row[3] for row in rows]
        counts = [ends.count(end) for end in ("refused", "opened", "raw", "code run")]
        longest, largest = max(row[4] for row in rows), max(row[5] for row in rows)
        numbers = " | ".join(map(str, [len(rows), *counts]))
        print(f"| {group} | {numbers} | {longest:.1f} | {largest:.0f} |")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as safe:
        os.environ["R2NO_CANARY"] = str(Path(safe) / "canary")
        main()
