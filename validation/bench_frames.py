"""The studies main, combination-rule and diagnostic on measured frames, through the bench code.

    python -m validation.bench_frames FRAMES [--updates 150] [--stride 1]
        [--systems cylinder combustion] [--backbones fno unet] [--out FOLDER]

FRAMES is a folder with cylinder.npz and combustion.npz: arrays `real` and `numerical`
(time, height, width) and `scale`; not shipped with r2no. Frames 0-149 train, 150-224 fit, 225-
test; windows of 10 + 10 frames, one measured channel. A small FNO and a small U-Net are trained
on the simulated frames and finetuned on the measured ones; the published 128 x 16 cells and an
L = 12 loop follow. Work is kept under --out and goes on where it stopped.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from r2no import backbones
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings, adapt
from r2no.data import ArrayWindows
from r2no.data.normalise import fit_normalisers
from r2no.progress import Reporter
from r2no.realpdebench.protocol.evaluation import Protocol
from r2no.realpdebench.study.config import BenchConfig, Pair
from r2no.realpdebench.study.figures import draw
from r2no.realpdebench.study.pair import score_pair
from r2no.realpdebench.study.tables import study_sheet
from r2no.realpdebench.study.values import load_results
from r2no.storage import fingerprint
from r2no.training import PhysicalOperator, TrainSettings, train_operator


def settings(updates, lr, **more):
    return TrainSettings(
        epochs=None,
        updates=updates,
        batch_size=4,
        lr=lr,
        final_lr=0.0,
        schedule="cosine_update",
        validations=4,
        seed=0,
        **more,
    )


def windows(frames, stride=1):
    return ArrayWindows([frames], 10, 10, stride=stride)


def splits(folder, system, stride):
    stored = np.load(folder / f"{system}.npz")
    real, numerical = (
        (stored[name][:, ::stride, ::stride] * float(stored["scale"])).astype(np.float32)[..., None]
        for name in ("real", "numerical")
    )
    parts = {"train": real[:150], "val": real[150:225], "test": real[225:]}
    measured = {name: windows(part) for name, part in parts.items()}
    return measured, (windows(numerical[:240]), windows(numerical[240:], 5))


def finetuned(place, measured, simulated, work, updates):
    """A small backbone, pretrained and finetuned."""
    fields = measured["train"].fields
    shape = (10, *fields.grid, 1)
    torch.manual_seed(0)
    config = backbones.small_config(place.backbone, shape_in=shape, shape_out=shape)
    network = backbones.build(place.backbone, config=config)
    source = PhysicalOperator(network, *fit_normalisers(simulated[0]))
    how = {"reporter": Reporter()}
    plain = settings(updates, 3e-3, weight_decay=0.0)
    train_operator(source, *simulated, plain, folder=work / "pre", **how)
    gentle = settings(updates, 2e-3, weight_decay=0.0)
    train_operator(source, measured["train"], measured["val"], gentle, folder=work / "fine", **how)
    return source.eval()


def pair(place, folder, updates, stride):
    measured, simulated = splits(folder, place.system, stride)
    work = place.config.out / "adapt" / f"{place.name}-{updates}-{stride}"
    source = finetuned(place, measured, simulated, work, updates)
    repair = RepairSettings(width=8, depth=3, train=settings(updates, 2e-3))
    chosen = AdaptSettings(repair=repair, ensemble=EnsembleSettings(cells="published"))
    normalisers = source.normalisers
    model = adapt(
        source,
        measured["train"],
        measured["val"],
        settings=chosen,
        normalisers=normalisers,
        folder=work,
        reporter=Reporter(),
    )
    key = fingerprint(updates, [one.fingerprint for one in measured.values()])
    score_pair(place, key, model, measured, protocol=Protocol(), reporter=Reporter())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames", type=Path)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--systems", nargs="+", default=["cylinder", "combustion"])
    parser.add_argument("--backbones", nargs="+", default=["fno", "unet"])
    parser.add_argument("--out", type=Path, default=Path("out/bench-frames"))
    arguments = parser.parse_args()
    config = BenchConfig.of(preset="mini", out=arguments.out)
    for system in arguments.systems:
        for backbone in arguments.backbones:
            place = Pair(config, system, backbone, "finetune")
            pair(place, arguments.frames, arguments.updates, arguments.stride)
    for name in ("main", "combination-rule", "diagnostic"):
        print(study_sheet(name, arguments.out).render("md"))
    draw("diagnostic", load_results(arguments.out), arguments.out, arguments.out / "figures")


if __name__ == "__main__":
    main()
