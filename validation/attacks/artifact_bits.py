"""Flip bits of an artifact: loading and inspecting must refuse, or nothing may change.

    python -m validation.attacks.artifact_bits [--flips 300] [--every 1]

``--every N`` tries every Nth bit of the manifest.
"""

import argparse
import random
import tempfile
from functools import partial
from pathlib import Path

import torch
from validation.attacks.common import Tally, history, run_script, silence, toy_model

import r2no
from r2no.cli.artifact import inspect


def flip(path: Path, bit: int) -> bytes:
    """Flip one bit of a file; returns what was there."""
    sound = path.read_bytes()
    changed = bytearray(sound)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    return sound


def try_flip(tally: Tally, folder: Path, path: Path, bit: int, expected: torch.Tensor) -> None:
    """Load, predict and inspect with one flipped bit."""
    sound = flip(path, bit)
    detail = f"bit {bit} of {path.name}"
    with silence():
        tally.no_raw(f"inspect: {detail}", partial(inspect, [str(folder)], as_json=True))
    with tally.trial(detail):
        same = torch.equal(r2no.load(folder).predict(history()), expected)
        tally.add("right" if same else "wrong", detail)
    path.write_bytes(sound)


def attack(options: argparse.Namespace) -> list[Tally]:
    """Random bits of all files, then all bits of the manifest."""
    anywhere = Tally("bit flips over all files of an artifact")
    manifest = Tally("every bit of manifest.json")
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as work:
        folder = toy_model().save(Path(work) / "a.r2no")
        expected = r2no.load(folder).predict(history())
        files = sorted(folder.iterdir())
        for _ in range(options.flips):
            path = draw.choice(files)
            try_flip(anywhere, folder, path, draw.randrange(8 * path.stat().st_size), expected)
        path = folder / "manifest.json"
        for bit in range(0, 8 * path.stat().st_size, options.every):
            try_flip(manifest, folder, path, bit, expected)
    return [anywhere, manifest]


if __name__ == "__main__":
    run_script(attack, flips=300, every=1)
