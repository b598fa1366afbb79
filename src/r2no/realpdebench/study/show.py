"""The table of any study, of a run or of the paper."""

from pathlib import Path

from r2no.realpdebench.study.details import detail_sheet
from r2no.realpdebench.study.printed import published
from r2no.realpdebench.study.results import load_results, study_values
from r2no.realpdebench.study.sheets import Sheet
from r2no.realpdebench.study.studies import SCORED, study
from r2no.realpdebench.study.tables import score_sheet


def study_sheet(
    name: str, run: Path | None = None, *, frmse: str = "frmse", norm: str | None = None
) -> Sheet:
    """The table of a study: of the run in folder ``run``, or of the paper's printed numbers.

    ``norm`` chooses among the results of a run with both norms of the spectral loss.
    """
    wanted = study(name)
    if run is None:
        return score_sheet(wanted, published(name))
    results = load_results(run, norm)
    if wanted.name in SCORED:
        return score_sheet(wanted, study_values(wanted, results), frmse=frmse)
    return detail_sheet(name, results, run)
