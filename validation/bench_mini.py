"""All 30 pairs and every study of the mini preset in one go, with the time it took.

    python -m validation.bench_mini [--out FOLDER] [--jobs 2]

Target: at most 40 minutes on two cores. A run that is stopped goes on.
"""

import argparse
import sys
import time
from pathlib import Path

from r2no.progress import Reporter
from r2no.realpdebench.study.config import BenchConfig
from r2no.realpdebench.study.figures import FIGURES, draw
from r2no.realpdebench.study.run import run_bench
from r2no.realpdebench.study.studies import STUDIES
from r2no.realpdebench.study.tables import compare_sheet, study_sheet
from r2no.realpdebench.study.values import load_results, published_studies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench-mini"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    start, out = time.monotonic(), arguments.out
    config = BenchConfig.of(preset="mini", out=out)
    outcomes = run_bench(config, jobs=arguments.jobs, threads=1, reporter=Reporter())
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    for outcome in failed:
        print(f"failed: {outcome.name} {outcome.error}")
    results = load_results(out)
    for name in STUDIES:
        sheet = study_sheet(name, out)
        (out / "tables").mkdir(exist_ok=True)
        for form in ("md", "latex", "csv"):
            (out / "tables" / f"{name}.{form}").write_text(sheet.render(form))
        print(sheet.title, *sheet.notes, sep="\n  ")
    for name in FIGURES:
        print(f"{name}: {len(draw(name, results, out, out / 'figures'))} figures")
    for name in published_studies():
        print(f"compare {name}: {len(compare_sheet(name, results).rows)} values")
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} results, ", end="")
    print(f"{(time.monotonic() - start) / 60:.1f} minutes")
    sys.exit(len(failed) > 0)


if __name__ == "__main__":
    main()
