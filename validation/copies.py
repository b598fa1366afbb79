"""Copies of stretches of one recording: how often they are known, and how often others pass.

    python -m validation.copies [--frames FRAMES]

``adapt`` takes two splits of copied arrays for stretches of one recording if the second goes on
where the first ends (``r2no.data.audit.going_on``). Counted are recordings of the wake cut in two
at several frames, and pairs of different recordings of it; with a folder of measured frames
(``cylinder.npz``, ``combustion.npz`` with ``real`` and ``scale``) stretches of these that follow
each other, that have one frame between them, and that lie apart.
"""

import argparse
import datetime
import itertools
from pathlib import Path

import numpy as np
import torch

from r2no.data import ArrayWindows
from r2no.data.audit import going_on
from r2no.wake import make_wake


def passes(first, second):
    return going_on(
        *(ArrayWindows([torch.as_tensor(part).clone()], 5, 5) for part in (first, second))
    )


def row(name, pairs):
    told = [passes(*pair) for pair in pairs]
    print(f"| {name} | {len(told)} | {sum(told)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/copies"))
    options = parser.parse_args()
    print(f"{datetime.date.today()}\n\n| data | pairs | taken for one recording |\n|---|---|---|")
    wake = make_wake(0, cache=options.out)
    whole = [array for part in (wake.real_train, wake.real_fit) for array in part.recordings]
    cuts = [(one[:at], one[at:]) for one in whole for at in (25, 30, 35, 40)]
    row("wake, one after the other", cuts)
    row("wake, different recordings", itertools.permutations(whole, 2))
    for system in ("cylinder", "combustion") if options.frames else ():
        with np.load(options.frames / f"{system}.npz") as file:
            frames = (file["real"] * file["scale"]).astype(np.float32)[..., None]
        for gap, name in enumerate(("one after the other", "a frame between")):
            starts = range(60, len(frames) - 70, 5)
            row(f"{system}, {name}", [(frames[:at], frames[at + gap :][:75]) for at in starts])
        places = itertools.product(range(60, 120, 10), range(20, 120, 10))
        row(f"{system}, apart", [(frames[:at], frames[at + far :][:60]) for at, far in places])


if __name__ == "__main__":
    main()
