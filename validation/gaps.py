"""What gaps cost: the wake's measurements complete, and with a fifth of their vectors lost.

    python validation/gaps.py [--seeds 0 1] [--share 0.2] [--out FOLDER]

A small FNO is pretrained on the simulated wake. The stand-in for measurements is written to NetCDF
files twice: complete, and with a random share of all vectors replaced by NaN, anew in each frame.
The same adaptation is run on each. The test counts every point, also those that were lost: the
model of the gappy files forecasts from gappy histories and is held against the complete targets.

Exits with 1 unless gaps cost at most 10 % of RMSE on average over the seeds.
"""

import argparse
import datetime
import platform
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import r2no
from r2no.adaptation import AdaptSettings, RepairSettings
from r2no.data import batches
from r2no.data.normalise import fit_normalisers
from r2no.metrics import Accumulator
from r2no.progress import Reporter
from r2no.training import PhysicalOperator, TrainSettings, train_operator
from r2no.wake import WakeSettings, make_wake

TRAIN = TrainSettings(
    epochs=None, updates=150, batch_size=4, lr=4e-3, final_lr=0.0, schedule="cosine_update",
    validations=4,
)  # fmt: skip


def write_files(windows, folder, share, seed):
    """A NetCDF file per trajectory, with gaps in u and v."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number, trajectory in enumerate(windows._trajectories):
        values = trajectory.numpy().copy()
        values[..., :2][rng.random(values.shape[:3]) < share] = np.nan
        names = windows.fields.channels
        data = xr.Dataset(
            {name: (("time", "y", "x"), values[..., c]) for c, name in enumerate(names)}
        )
        data.to_netcdf(folder / f"{number:03d}.nc")
    return str(folder / "*.nc")


def open_split(wake, part, folder, share, seed):
    windows = getattr(wake, f"real_{part}")
    pattern = write_files(windows, folder / part, share, seed)
    fields = windows.fields
    return r2no.data.open(pattern, variables=fields.channels).windows(
        fields.history_frames, fields.horizon_frames, stride=2, measured=fields.measured
    )


def pretrained(wake, seed, folder, reporter):
    shape = (*wake.numerical_train[0].history.shape,)
    torch.manual_seed(seed)
    config = r2no.backbones.small_config("fno", shape_in=shape, shape_out=shape)
    source = PhysicalOperator(
        r2no.backbones.build("fno", config=config), *fit_normalisers(wake.numerical_train)
    )
    train_operator(
        source, wake.numerical_train, wake.numerical_val, TRAIN, folder=folder, reporter=reporter
    )
    return source.eval()


def score(model, given, complete):
    """RMSE of forecasts from the histories of ``given`` against all values of ``complete``."""
    metrics = Accumulator(measured=model.fields.measured)
    for (_, window), (_, truth) in zip(batches(given, 8), batches(complete, 8), strict=True):
        metrics.update(model.predict(window.history), truth.target)
    return metrics.compute()["rmse"]


def case(seed, share, out, reporter):
    settings = replace(WakeSettings.quick(seed), grid=(24, 48), real_train=4, real_frames=50)
    wake = make_wake(seed, settings=settings, cache=out / "wake")
    source = pretrained(wake, seed, out / f"source-{seed}", reporter)
    repair = RepairSettings(width=8, depth=3, train=TRAIN.model_copy(update={"lr": 2e-3}))
    options = AdaptSettings(members=1, repair=repair)
    found = {}
    for name, lost in (("complete", 0.0), ("gappy", share)):
        folder = out / f"{name}-{seed}"
        parts = {
            part: open_split(wake, part, folder, lost, 100 * seed + number)
            for number, part in enumerate(("train", "fit", "test"))
        }
        model = r2no.adapt(
            source,
            parts["train"],
            parts["fit"],
            settings=options,
            folder=folder / "work",
            reporter=reporter,
        )
        found[name] = score(model, parts["test"], wake.real_test)
        found[f"source, {name}"] = score(
            replace(model, ensemble=model.ensemble.derive(ridge=1e30)),
            parts["test"],
            wake.real_test,
        )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--out", type=Path, default=Path("out/gaps"))
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {platform.machine()}, torch {torch.__version__}\n")
    print("| seed | source, complete | source, gappy | R2NO, complete | R2NO, gappy | cost |")
    print("|---|---|---|---|---|---|")
    costs = []
    for seed in arguments.seeds:
        row = case(seed, arguments.share, arguments.out, Reporter())
        costs.append(row["gappy"] / row["complete"] - 1)
        order = ("source, complete", "source, gappy", "complete", "gappy")
        values = " | ".join(f"{row[name]:.5f}" for name in order)
        print(f"| {seed} | {values} | {100 * costs[-1]:+.1f} % |", flush=True)
    mean = sum(costs) / len(costs)
    print(
        f"\n{100 * arguments.share:.0f} % of vectors lost cost {100 * mean:+.1f} % RMSE on average"
    )
    sys.exit(mean > 0.1)


if __name__ == "__main__":
    main()
