"""Two processes into one output, and many threads on one model.

    python -m validation.attacks.concurrency [--pairs 20] [--predicts 100]

Of two processes one result stays, the right one; the other waited for it or was refused by name.
Predictions from 8 threads on freshly loaded models equal those of one thread bit for bit.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from validation.attacks.common import Tally, history, run_script, toy_model, write_npz
from validation.attacks.processes import (
    Child,
    bench_arguments,
    digest,
    fork,
    is_named,
    own_workspace,
    r2no,
    residue,
)

import r2no as library

THREADS = 8


def race(
    tally: Tally,
    start: Callable[[], Child],
    output: Path,
    pairs: int,
    ignored: tuple[str, ...] = (),
) -> None:
    """Start two of a kind at once, again and again, and compare with one alone."""
    alone = start()
    if alone.wait() != 0:
        tally.add("raw", f"one alone failed: {alone.text()[-300:]}")
        return
    expected = digest(output, *ignored)
    for _ in range(pairs):
        shutil.rmtree(output) if output.is_dir() else output.unlink()
        children = [start(), start()]
        codes = [child.wait() for child in children]
        failed = [(c, code) for c, code in zip(children, codes, strict=True) if code != 0]
        if raw := [child for child, code in failed if not is_named(child, code)]:
            tally.add("raw", f"{output.name}: {codes}: {raw[0].text()[-300:]}")
        elif len(failed) == 2 or not output.exists():
            tally.add("lost", f"{output.name}: {codes}")
        elif digest(output, *ignored) != expected or residue(output.parent):
            tally.add("wrong", f"{output.name}: {codes}, left {residue(output.parent)}")
        else:
            tally.add("refused" if failed else "right")


def threads(tally: Tally, artifact: Path, predicts: int) -> None:
    """Many predictions at once on a model that has not predicted before."""
    expected = library.load(artifact).predict(history())
    model = library.load(artifact)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(model.predict, [history()] * predicts))
    for one in [*found, model.predict(history())]:  # and serially afterwards
        tally.add("right" if torch.equal(one, expected) else "wrong", "another prediction")


def attack(options: argparse.Namespace) -> list[Tally]:
    """Pairs of each kind of writer, then threads, twice over."""
    torch.set_num_threads(1)
    tallies = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        part = max(options.pairs // 5, 1)
        artifact = toy_model().save(work / "model.r2no")
        data = write_npz(work / "data.npz")
        config = own_workspace(work, epochs=1)

        def pair(attack: str, output: Path, arguments: list[object], *ignored: str) -> None:
            tallies.append(Tally(f"two at once, one output: {attack}"))
            race(tallies[-1], lambda: r2no(*arguments), output, part, ignored)

        pair("adapt", work / "run", ["adapt", config])
        for ending in ("nc", "zarr"):
            out = work / "forecasts" / f"f.{ending}"
            pair(f"predict .{ending}", out, ["predict", artifact, data, "--out", out])
        pair("bench", work / "bench" / "b", bench_arguments(work / "bench" / "b"), "cost")
        tallies.append(Tally("two at once, one output: save"))
        place = work / "saves" / "model.r2no"
        save = lambda: library.load(artifact).save(place)  # noqa: E731
        race(tallies[-1], lambda: fork(save), place, part)
        for turn in ("first", "second"):
            tallies.append(Tally(f"8 threads on a freshly loaded model, {turn} time"))
            threads(tallies[-1], artifact, options.predicts)
    return tallies


if __name__ == "__main__":
    run_script(attack, pairs=20, predicts=100)
