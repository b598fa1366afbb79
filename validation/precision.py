"""What bf16 costs: RMSE of the same adaptation with repair modules in float32 and in bf16.

    python -m validation.precision [FRAMES] [--seeds 0 1] [--members 1] [--out FOLDER]

On the wake of `r2no demo --quick`, and for each SYSTEM.npz in FRAMES as in validation.little_data
(FNO, stride 2). Source, data and seeds are the same; `bf16` multiplies so in training and after,
`after` only after a training in float32. For scale, `seed` is float32 with modules of another seed.
Work is kept under --out and goes on where it stopped. TF32 exists on CUDA alone.
"""

import argparse
import copy
import dataclasses
import datetime
import platform
from functools import partial
from pathlib import Path

import torch
from validation import little_data

from r2no.adaptation import AdaptSettings, RepairSettings, adapt
from r2no.checks import changed
from r2no.progress import Reporter
from r2no.wake.demo import DemoSettings, prepare

QUIET = Reporter(quiet=True)


def wake(seed, members, out):
    """Settings, `adapt` with all else given, the test windows and a folder, of the demo."""
    demo = DemoSettings(seed=seed, members=members, quick=True)
    data, _, source, work = prepare(out / "wake", demo, QUIET)
    ready = partial(adapt, source, data.real_train, data.real_fit)
    normalisers = source.normalisers
    return demo.adapt(), partial(ready, normalisers=normalisers), data.real_test, work


def frames(folder, system, seed, members, out):
    """The same of measured frames."""
    splits, _, source, work = little_data.operators(folder, system, "fno", 2, seed, out)
    train = little_data.settings(2e-3, seed, 1e-5, **little_data.REPAIR)
    repair = RepairSettings(width=8, depth=3, train=train)
    settings = AdaptSettings(members=members, seed=42 + 100 * seed, repair=repair)
    normalisers = source.normalisers
    adapted = partial(adapt, source, *splits[:2], normalisers=normalisers)
    return settings, adapted, splits[2], work


def after(model):
    """The model, its modules multiplying in bf16 from now on."""
    modules = copy.deepcopy(model.loops.modules)
    for module in modules:
        module.precision = "bf16"
    return dataclasses.replace(model, loops=dataclasses.replace(model.loops, modules=modules))


def row(settings, adapted, test, work):
    """RMSE by way, the first one that all are compared with."""
    others = {"bf16": {"precision": "bf16"}, "seed": {"seed": settings.seed + 7}}
    plain = adapted(settings=settings, folder=work / "float32", reporter=QUIET)
    models = {"float32": plain, "after": after(plain)} | {
        name: adapted(settings=changed(settings, **more), folder=work / name, reporter=QUIET)
        for name, more in others.items()
    }
    return {name: model.evaluate(test)["rmse"] for name, model in models.items()}


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("frames", nargs="?", type=Path)
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    options.add_argument("--members", type=int, default=1)
    options.add_argument("--out", type=Path, default=Path("precision-out"))
    given = options.parse_args()
    torch.set_num_threads(1)
    print(f"{datetime.date.today()}, {platform.machine()}, torch {torch.__version__}\n")
    print("| case | float32 | bf16 | bf16 after training | float32, other seed |")
    print("|---|---|---|---|---|")
    files = [] if given.frames is None else sorted(given.frames.glob("*.npz"))
    for seed in given.seeds:
        cases = {"wake": partial(wake, seed)} | {
            file.stem: partial(frames, given.frames, file.stem, seed) for file in files
        }
        for name, case in cases.items():
            found = row(*case(given.members, given.out))
            shown = [f"{found['float32']:.6f}"] + [
                f"{found[way]:.6f} ({100 * (found[way] / found['float32'] - 1):+.2f} %)"
                for way in ("bf16", "after", "seed")
            ]
            print(f"| {name}, seed {seed} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
