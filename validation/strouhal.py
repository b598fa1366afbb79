"""Check the built-in solver against the measured shedding frequency of a circular cylinder.

    python validation/strouhal.py

At Reynolds number 100 the Strouhal number is 0.165 (Williamson 1989: 0.164). The domain must be
wide, since blockage speeds up the flow past the cylinder. Takes about two minutes on two cores and
ends with status 1 if the widest domain is off by more than 5 % at Reynolds number 100.
"""

import sys
import time

from r2no.training.parallel import run_tasks
from r2no.wake import Domain, Shedding, measure_shedding

EXPECTED, TOLERANCE = 0.165, 0.05
#: Cells per diameter, domain height in diameters, Reynolds number.
CASES = [(8, 8, 100), (8, 16, 100), (8, 30, 100), (12, 20, 100), (12, 20, 80), (12, 20, 150)]


def williamson(reynolds: float) -> float:
    """Fit to measurements of parallel shedding, Re 49 to 178 (Williamson 1989)."""
    return -3.3265 / reynolds + 0.1816 + 1.6e-4 * reynolds


def wide_domain(diameter: int, height: int) -> Domain:
    return Domain(
        height=height * diameter,
        width=28 * diameter,
        diameter=diameter,
        centre=(8.0 * diameter, height * diameter / 2),
        speed=0.1,
        sides="slip",
        sponge=3 * diameter,
    )


def run(case: tuple[int, int, int]) -> tuple[Shedding, float]:
    diameter, height, reynolds = case
    start = time.thread_time()
    found = measure_shedding(wide_domain(diameter, height), reynolds)
    return found, time.thread_time() - start


def main() -> int:
    print(f"{'Re':>4} {'D':>3} {'H/D':>4} {'blockage':>9} {'Strouhal':>9} {'measured':>9}", end="")
    print(f" {'error':>7} {'periods':>8} {'out/in - 1':>11} {'CPU s':>6}", flush=True)
    worst = 0.0
    results = run_tasks([lambda _, case=case: run(case) for case in CASES], work=0)
    for (diameter, height, reynolds), (found, seconds) in zip(CASES, results, strict=True):
        blockage = wide_domain(diameter, height).blockage
        expected = EXPECTED if reynolds == 100 else williamson(reynolds)
        error = found.strouhal / expected - 1
        print(
            f"{reynolds:>4} {diameter:>3} {height:>4} {blockage:>9.1%} "
            f"{found.strouhal:>9.4f} {expected:>9.4f} {error:>+7.1%} {found.periods:>8} "
            f"{found.imbalance:>+11.1e} {seconds:>6.0f}"
        )
        if reynolds == 100 and blockage <= 0.05:
            worst = max(worst, abs(error))
    print(f"Largest error at Re 100 with a blockage of at most 5 %: {worst:.1%} (limit 5 %).")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
