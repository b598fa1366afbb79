"""The paper's experiments: declared studies, resumable runs, tables, figures, comparison.

One pass over the fit split (sums) and one over the test split feed every study (M5-M12); the price
of selection takes the first member over the fit split once more.
"""

from r2no.realpdebench.study.config import BenchConfig
from r2no.realpdebench.study.figures import FIGURES, draw
from r2no.realpdebench.study.plan import plan_sheet
from r2no.realpdebench.study.results import load_results, results_by_norm, study_values
from r2no.realpdebench.study.run import Outcome, run_bench
from r2no.realpdebench.study.sheets import FORMATS, Sheet
from r2no.realpdebench.study.studies import SCORED, STUDIES, study
from r2no.realpdebench.study.tables import compare_sheet, score_sheet, study_sheet
from r2no.realpdebench.study.values import published, published_studies

__all__ = [
    "FIGURES",
    "FORMATS",
    "SCORED",
    "STUDIES",
    "BenchConfig",
    "Outcome",
    "Sheet",
    "compare_sheet",
    "draw",
    "load_results",
    "plan_sheet",
    "published",
    "published_studies",
    "results_by_norm",
    "run_bench",
    "score_sheet",
    "study",
    "study_sheet",
    "study_values",
]
