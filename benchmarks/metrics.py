"""All metrics of a test set, against a straightforward reference with Python triple loops.

    python -m benchmarks.metrics [--brief] [--against ANOTHER_CHECKOUT]

The reference follows the published definitions literally:
whole FFTs of prediction and target, then a loop over every index of the octant. It is ours: the
benchmark's own function is not run here, and is faster than it. It is timed in float32, as a
benchmark would run it, and in float64, where the two must agree to 1e-6. Times are processor
seconds, best of interleaved runs; ``ten_seconds`` is for ten forecasts held against one target. The
last lines stream 1,000 windows through one accumulator and report how its peak memory grows.

With ``--against`` only this checkout is compared with another one, in two processes that take
turns: processor seconds for the same float32 windows, of one forecast and of each of ten that are
held against one target (one after the other where a checkout has no ``Target``), and their ratios.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import parser, peak_megabytes, print_conditions
from r2no import metrics
from r2no.metrics import Accumulator, evaluate

SHAPE, BRIEF = (64, 20, 64, 128, 2), (8, 8, 16, 16, 2)
HERE = Path(__file__).parents[1]


def shell_energy(transform: Tensor, shells: int) -> Tensor:
    """Σ of |F|² in each shell of the octant, one index at a time: (window, shell, channel)."""
    windows, t, h, w, channels = transform.shape
    energy = transform.abs() ** 2
    total = torch.zeros(windows, shells, channels, dtype=energy.dtype)
    for i in range(t // 2):
        for j in range(h // 2):
            for k in range(w // 2):
                radius = math.floor(math.sqrt(i**2 + j**2 + k**2))
                if radius < shells:
                    total[:, radius] += energy[:, i, j, k]
    return total


def reference_bands(name: str, by_shell: Tensor) -> dict[str, Tensor]:
    shells = len(by_shell)
    low, high = round(shells / 3), round(2 * shells / 3)
    parts = {"low": by_shell[:low], "mid": by_shell[low:high], "high": by_shell[high:]}
    return {f"{name}_{band}": part.mean() for band, part in parts.items()}


def reference(prediction: Tensor, target: Tensor) -> dict[str, float]:
    """The thirteen published scores, in the precision of the arguments."""
    _, t, h, w, _ = prediction.shape
    error = prediction - target
    kinetic = [0.5 * f[..., :2].var(1, correction=0).sum(-1) for f in (prediction, target)]
    transforms = [torch.fft.fftn(f, dim=(1, 2, 3)) for f in (prediction, target)]
    shells = min(t // 2, h // 2, w // 2)
    octant, norm = (
        (shell_energy(field, shells).mean(0).sqrt() / (t * h * w))
        for field in (transforms[0] - transforms[1], transforms[1])
    )
    series = [torch.fft.fft(f.sum((2, 3, 4)), dim=1) for f in (prediction, target)]
    scores = {
        "rmse": (error**2).mean().sqrt(),
        "mae": error.abs().mean(),
        "rel_l2": (error.flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)).mean(),
        "r2": 1 - (error**2).sum() / ((target - target.mean(0)) ** 2).sum(),
        "ke_error": (kinetic[0] - kinetic[1]).abs().mean(),
        "frmse": octant.mean(),
        **reference_bands("frmse", octant),
        **reference_bands("rel_frmse", octant / norm),
        "freq_error": (series[0] - series[1]).abs().mean(),
    }
    return {name: float(value) for name, value in scores.items()}


def example(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """A mean flow with travelling waves and noise, and a prediction that is off by a little."""
    generator = torch.Generator().manual_seed(seed)
    windows, t, h, w, channels = shape
    time_, y, x = torch.meshgrid(
        *(torch.arange(n) / n * 2 * math.pi for n in (t, h, w)), indexing="ij"
    )
    phase = 2 * math.pi * torch.rand(windows, 1, 1, 1, channels, generator=generator)
    wave = torch.sin((2 * x + y - time_)[None, ..., None] + phase)
    noise = torch.randn((2, windows, t, h, w, channels), generator=generator)
    target = 1 + 0.3 * wave + 0.1 * noise[0]
    return target + 0.02 * wave + 0.05 * noise[1], target


def processor_seconds(action: Callable[[], object]) -> float:
    """Of one call, by all threads of this process."""
    start = time.process_time()
    action()
    return time.process_time() - start


def ten_forecasts(prediction: Tensor, target: Tensor) -> None:
    """Score ten forecasts of the same windows."""
    shared = metrics.Target(target, measured=target.shape[-1])
    for _ in range(10):
        Accumulator(target.shape[-1]).update(prediction, shared).compute()


def compare(shape: tuple[int, ...], repeats: int = 5) -> dict[str, float]:
    """Best of interleaved runs, and the largest relative difference from the float64 reference."""
    prediction, target = example(shape)
    double = prediction.double(), target.double()
    ours = evaluate(prediction, target, measured=shape[-1])
    exact = reference(*double)
    actions: dict[str, Callable[[], object]] = {
        "reference_float32": lambda: reference(prediction, target),
        "ours": lambda: evaluate(prediction, target, measured=shape[-1]),
        "reference_float64": lambda: reference(*double),
        "ours_float64": lambda: evaluate(*double, measured=shape[-1]),
        "ten": lambda: ten_forecasts(prediction, target),
    }
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            times[name].append(processor_seconds(action))
    best = {name: min(values) for name, values in times.items()}
    return {
        **{f"{name}_seconds": value for name, value in best.items()},
        "speedup_float32": best["reference_float32"] / best["ours"],
        "speedup_float64": best["reference_float64"] / best["ours_float64"],
        "speedup_float32_ten": 10 * best["reference_float32"] / best["ten"],
        "largest_relative_difference": max(abs(ours[k] / exact[k] - 1) for k in exact),
    }


def stream(shape: tuple[int, ...], windows: int = 1000, batch: int = 8) -> dict[str, float]:
    """Growth of the peak resident memory from the first batch to the last; 13 batches in turn."""
    batches = [example((batch, *shape[1:]), seed=number) for number in range(13)]
    accumulator = Accumulator(shape[-1]).update(*batches[0])
    settled = peak_megabytes()
    for number in range(1, windows // batch):
        accumulator.update(*batches[number % len(batches)])
    accumulator.compute()
    return {"windows": windows, "growth_mb": peak_megabytes() - settled}


def against(other: Path, shape: tuple[int, ...], repeats: int = 12) -> dict[str, dict[str, float]]:
    """Processor seconds of both checkouts, by turns in a process each."""
    workers = {"other": _worker(other.resolve(), shape), "ours": _worker(HERE, shape)}
    times: dict[str, list[list[float]]] = {name: [] for name in workers}
    for _ in range(repeats):
        for name, worker in workers.items():
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
            times[name].append(json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()
    found = {}
    for place, what in enumerate(("one_forecast", "each_of_ten")):
        theirs, ours = ([turn[place] for turn in times[name]] for name in ("other", "ours"))
        found[what] = {
            "other_seconds": min(theirs),
            "ours_seconds": min(ours),
            "speedup_best": min(theirs) / min(ours),
            "speedup_median": statistics.median(theirs) / statistics.median(ours),
        }
    return found


def _worker(checkout: Path, shape: tuple[int, ...]) -> "subprocess.Popen[str]":
    """A process that times one call for each line it is sent, with the package of a checkout."""
    if not (checkout / "src" / "r2no").is_dir():
        raise SystemExit(f"--against must be a checkout of r2no, but {checkout} has no src/r2no.")
    code = f"from benchmarks.metrics import answer; answer({shape})"
    paths = os.pathsep.join([str(checkout / "src"), str(HERE)])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(shape: tuple[int, ...]) -> None:
    """Print the seconds of both for each line that comes in; the first calls do not count."""
    prediction, target = example(shape)

    def one() -> None:
        evaluate(prediction, target, measured=shape[-1])

    def ten() -> None:
        if hasattr(metrics, "Target"):
            ten_forecasts(prediction, target)
        else:
            for _ in range(10):
                one()

    ten()
    for _ in sys.stdin:
        print(json.dumps([processor_seconds(one), processor_seconds(ten) / 10]), flush=True)


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--against", type=Path, help="a checkout to compare with, and nothing else"
    )
    given = options.parse_args()
    shape = BRIEF if given.brief else SHAPE
    print_conditions(brief=given.brief)
    if given.against is not None:
        print(json.dumps(against(given.against, shape), indent=2))
        return
    memory = stream(shape)  # first, while the peak is not yet that of the reference
    found = {"threads": torch.get_num_threads(), **compare(shape), "stream": memory}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
