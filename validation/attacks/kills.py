"""Kill adapt, predict, bench and save at random moments (KILL, INT, TERM) and run them again.

    python -m validation.attacks.kills [--kills 36] [--saves 24]

Each must end with the bits of an undisturbed run and leave nothing temporary; while saving over an
artifact the folder must hold, at any moment, the old or the new one.
"""

import argparse
import contextlib
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from validation.attacks.common import Tally, history, run_script, toy_model, write_npz
from validation.attacks.processes import (
    Child,
    bench_arguments,
    digest,
    fork,
    own_workspace,
    r2no,
    residue,
)

import r2no as library
from r2no.errors import R2NOError

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


def hunt(
    tally: Tally,
    start: Callable[[], Child],
    output: Path,
    kills: int,
    ignored: tuple[str, ...] = (),
) -> None:
    """Kill a command until it was hit ``kills`` times; compare whenever it gets through."""
    draw = random.Random(0)
    begun = time.monotonic()
    first = start()
    if first.wait() != 0:
        tally.add("raw", f"the undisturbed run failed: {first.text()[-300:]}")
        return
    seconds, expected = time.monotonic() - begun, digest(output, *ignored)
    shutil.rmtree(output) if output.is_dir() else output.unlink()
    hits = 0

    def compare(child: Child, code: int) -> None:
        if code != 0:
            tally.add("raw", f"after {hits} kills: code {code}: {child.text()[-400:]}")
        elif digest(output, *ignored) != expected:
            found = digest(output, *ignored)
            others = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
            tally.add("wrong", f"{output.name} differs after {hits} kills in {sorted(others)}")
        elif left := residue(output.parent):
            tally.add("wrong", f"left behind: {left}")
        shutil.rmtree(output) if output.is_dir() else output.unlink(missing_ok=True)

    while hits < kills:
        child = start()
        moment, number = draw.uniform(0, 0.8 * seconds), draw.choice(SIGNALS)
        if child.kill_after(moment, number):
            hits += 1
            tally.add("right")
        elif output.exists():
            compare(child, 0)
    last = start()
    compare(last, last.wait())


def save_forever(artifacts: list[Path], target: Path) -> None:
    """Save one model after the other into one folder."""
    models = [library.load(path) for path in artifacts]
    while True:
        for model in models:
            model.save(target)


def hunt_saves(tally: Tally, work: Path, kills: int) -> None:
    """Kill a process that saves over an artifact; the artifact must be one of the two."""
    draw = random.Random(1)
    artifacts = [toy_model(seed).save(work / f"{seed}.r2no") for seed in range(2)]
    known = [library.load(path).predict(history()) for path in artifacts]
    target = work / "place" / "model.r2no"
    library.load(artifacts[0]).save(target)
    for number in range(kills):
        child = fork(lambda: save_forever(artifacts, target))
        child.kill_after(draw.uniform(0.05, 0.6), draw.choice(SIGNALS))
        try:
            found = library.load(target).predict(history())
        except (R2NOError, OSError) as error:
            tally.add("lost", f"kill {number}: {error}")
            library.load(artifacts[0]).save(target)
            continue
        same = any(torch.equal(found, one) for one in known)
        tally.add("right" if same else "wrong", f"kill {number}")
    library.load(artifacts[0]).save(target)
    if left := residue(work / "place"):
        tally.add("wrong", f"left behind: {left}")


def attack(options: argparse.Namespace) -> list[Tally]:
    """A third of the kills for each command, then the saves."""
    torch.set_num_threads(1)
    commands = Tally("kill -9 / INT / TERM in adapt, predict, bench")
    saves = Tally("kill -9 / INT / TERM while saving over an artifact")
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        part = max(options.kills // 4, 1)
        config = own_workspace(work)
        run = work / "run"
        hunt(commands, lambda: r2no("adapt", config), run, part)
        model = toy_model().save(work / "model.r2no")
        data = write_npz(work / "data.npz", frames=400)
        for ending in ("nc", "zarr"):
            out = work / "forecasts" / f"f.{ending}"
            arguments = ["predict", model, data, "--out", out, "--stride", 1]
            hunt(commands, lambda a=arguments: r2no(*a), out, part)
        bench = work / "bench"
        hunt(commands, lambda: r2no(*bench_arguments(bench)), bench, part, ("cost",))
        hunt_saves(saves, work, options.saves)
    return [commands, saves]


if __name__ == "__main__":
    run_script(attack, kills=36, saves=24)
