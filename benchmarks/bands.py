"""Cost of a forecast with bounds and alarm against the forecast alone.

    python -m benchmarks.bands [--repeats 15] [--brief]

A 64 x 128 case of 10 + 10 frames and 2 channels, a small FNO as source, without repair modules: the
cheapest forecast there is, so the highest ratio. Times alternate in one run; a ratio is the median
over rounds of each round's.
"""

import statistics

import torch

from benchmarks import parser, print_conditions, seconds
from r2no import adapt, backbones
from r2no.data import ArrayWindows, collate

FRAMES, CHANNELS, BATCH = 10, 2, 4


def model_and_history(grid):
    """A model of random recordings, and windows to forecast."""
    torch.manual_seed(0)
    recordings = [torch.randn(3 * FRAMES, *grid, CHANNELS) for _ in range(8)]
    shape = (FRAMES, *grid, CHANNELS)
    config = backbones.small_config("fno", shape_in=shape, shape_out=shape)
    source = backbones.build("fno", config=config).eval()
    train, fit = (ArrayWindows(part, FRAMES, FRAMES) for part in (recordings[:2], recordings[2:]))
    model = adapt(source, train, fit, members=0)
    return model, collate([fit[number] for number in range(BATCH)]).history


def main():
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=15)
    given = options.parse_args()
    print_conditions(brief=given.brief)
    model, history = model_and_history((16, 32) if given.brief else (64, 128))
    asked = {"forecast": None, "coverage 0.9": 0.9, "coverages 0.5, 0.8, 0.9": (0.5, 0.8, 0.9)}
    times = {name: [] for name in asked}
    for coverage in asked.values():  # factors are computed once
        model.predict(history, coverage=coverage)
    for _ in range(given.repeats):
        for name, coverage in asked.items():
            times[name].append(
                seconds(lambda given=coverage: model.predict(history, coverage=given))
            )
    print("| predict | seconds per batch | ratio to the forecast | target |\n|---|---|---|---|")
    targets = ("", "<= 1.10", "")
    for (name, taken), target in zip(times.items(), targets, strict=True):
        ratio = statistics.median(a / b for a, b in zip(taken, times["forecast"], strict=True))
        print(f"| {name} | {statistics.median(taken):.3f} | {ratio:.3f} | {target} |")


if __name__ == "__main__":
    main()
