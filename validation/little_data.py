"""Little data: the nested estimator against every readout on measured frames.

    python validation/little_data.py FRAMES [--systems cylinder combustion] [--backbones fno unet]
        [--strides 2 1] [--seeds 0 1] [--out FOLDER]

FRAMES is a folder with cylinder.npz and combustion.npz: arrays `real` and `numerical`
(time, height, width) and `scale`; not shipped with r2no. Frames 0-149 train, 150-224 fit, 225-
test; windows of 10 + 10 frames. Each source is pretrained on the simulated frames and finetuned
on the measured ones, then three repair modules are trained. Work is kept under --out and goes on
where it stopped.

Exits with 1 unless in every case the nested fit is within 0.5 % of the best of source, IRNO at
the selected depth, global combination and published partition, below the source wherever it
says deploy, and on average at least 3 % better than the published partition.
"""

import argparse
import datetime
import itertools
import platform
import sys
from pathlib import Path

import numpy as np
import torch

from r2no import backbones
from r2no.adaptation import (
    AdaptSettings,
    EnsembleSettings,
    RepairSettings,
    adapt,
    readouts,
    score_readouts,
)
from r2no.data import ArrayWindows
from r2no.progress import Reporter
from r2no.training import PhysicalOperator, TrainSettings, train_operator
from r2no.training.backbone import fit_normalisers


def windows(frames, stride=1):
    return ArrayWindows([frames], 10, 10, stride=stride)


SOURCES = {  # an update of the U-Net takes twenty times as long as one of the FNO
    "fno": {"updates": 120, "batch_size": 4, "validations": 3},
    "unet": {"updates": 24, "batch_size": 2, "validations": 1},
}
REPAIR = {"updates": 80, "batch_size": 4, "validations": 3}


def settings(lr, seed, weight_decay=0.0, **schedule):
    return TrainSettings(
        epochs=None,
        lr=lr,
        final_lr=0.0,
        weight_decay=weight_decay,
        schedule="cosine_update",
        seed=seed,
        **schedule,
    )


def case(folder, system, backbone, stride, seed, out):
    """Scores of every readout for one and three members, RMSE on the test frames."""
    stored = np.load(folder / f"{system}.npz")
    real, numerical = (
        (stored[name][:, ::stride, ::stride] * float(stored["scale"])).astype(np.float32)[..., None]
        for name in ("real", "numerical")
    )
    train, fit, test = windows(real[:150]), windows(real[150:225]), windows(real[225:])
    simulated = windows(numerical[:240]), windows(numerical[240:], 5)
    work, reporter = out / f"{system}-{backbone}-{stride}-{seed}", Reporter()
    shape = (10, *real.shape[1:])
    torch.manual_seed(seed)
    config = backbones.small_config(backbone, shape_in=shape, shape_out=shape)
    network = backbones.build(backbone, config=config)
    source = PhysicalOperator(network, *fit_normalisers(simulated[0]))
    common = {"reporter": reporter}
    pre, fine = (settings(lr, seed, **SOURCES[backbone]) for lr in (3e-3, 2e-3))
    train_operator(source, *simulated, pre, folder=work / "pre", **common)
    train_operator(source, train, fit, fine, folder=work / "fine", **common)
    repair = RepairSettings(width=8, depth=3, train=settings(2e-3, seed, 1e-5, **REPAIR))
    model = adapt(
        source.eval(),
        train,
        fit,
        settings=AdaptSettings(
            members=3, seed=42 + 100 * seed, repair=repair, ensemble=EnsembleSettings()
        ),
        normalisers=(source.history_normaliser, source.target_normaliser),
        folder=work,
        reporter=reporter,
    )
    rows = []
    for members in (1, 3):
        nested = model.ensemble.derive(members=members)
        flat = nested.derive(ridge="auto")
        every = readouts(model)
        chosen = {
            "irno_selected": every["irno_selected"],
            "global": flat.derive(cells=every["global"].cells),
            "published": flat,
            "nested": nested,
        }
        scores, _ = score_readouts(model, test, chosen, reporter=reporter)
        errors = {name: value["rmse"] for name, value in scores.items()}
        rows.append((members, errors, nested.nested_))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames", type=Path)
    parser.add_argument("--systems", nargs="+", default=["cylinder", "combustion"])
    parser.add_argument("--backbones", nargs="+", default=["fno", "unet"])
    parser.add_argument("--strides", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("out/little-data"))
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {platform.machine()}, torch {torch.__version__}\n")
    names = ("source", "irno_selected", "global", "published", "nested")
    print("| system | source | stride | seed | M | " + " | ".join(names) + " | leading | verdict |")
    print("|" + "---|" * (7 + len(names)))
    held, ratios = True, []
    grid = (arguments.strides, arguments.backbones, arguments.systems, arguments.seeds)
    for stride, backbone, system, seed in itertools.product(*grid):
        for members, errors, nested in case(
            arguments.frames, system, backbone, stride, seed, arguments.out
        ):
            best = min(errors[name] for name in names[:-1])
            deploy = nested.verdict.decision == "deploy"
            held &= errors["nested"] <= 1.005 * best
            held &= not deploy or errors["nested"] < errors["source"]
            ratios.append(errors["nested"] / errors["published"])
            levels = " > ".join(f"{r}x{a}" if r else "one" for r, a in nested.leading.levels)
            values = " | ".join(f"{errors[name]:.5f}" for name in names)
            where = f"{system} | {backbone} | {stride} | {seed} | {members}"
            verdict = f"{nested.verdict.decision}, {100 * nested.verdict.gain:+.1f} %"
            print(f"| {where} | {values} | {levels} | {verdict} |", flush=True)
    gain = 100 * (1 - sum(ratios) / len(ratios))
    print(f"\nevery case within 0.5 % of the best, no harm where deployed: {held}")
    print(f"mean gain over the published partition: {gain:.1f} %")
    sys.exit(not (held and gain >= 3))


if __name__ == "__main__":
    main()
