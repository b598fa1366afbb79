"""The paper's studies by name: which rows of which pairs, in which metrics."""

from dataclasses import dataclass
from typing import Literal

from r2no.checks import choice

#: Where a pair starts from: the finetuned checkpoint, or the one of the simulation.
SourceName = Literal["finetune", "pretrained"]
SOURCES: tuple[SourceName, ...] = ("finetune", "pretrained")

BACKBONES = {
    "unet": "U-Net",
    "deeponet": "DeepONet",
    "fno": "FNO",
    "cno": "CNO",
    "transolver": "Transolver",
    "dpot_s": "DPOT-S",
}
SYSTEM_NAMES = {
    "cylinder": "Cylinder",
    "controlled_cylinder": "Controlled Cylinder",
    "fsi": "FSI",
    "foil": "Foil",
    "combustion": "Combustion",
}
#: Repair modules of the paper's ensembles.
PUBLISHED_MEMBERS = 3
#: Tables show a metric in these units.
SCALES = {"rmse": 1e-2, "frmse": 1e-3, "frmse_full": 1e-3, "rel_l2": 1e-2}
METRIC_NAMES = {
    "rmse": "RMSE",
    "frmse": "fRMSE",
    "frmse_full": "fRMSE (full)",
    "rel_l2": "relative L2",
}


@dataclass(frozen=True)
class Row:
    """One row of a table: the readout ``readout`` of the pairs that start from ``source``."""

    key: str
    label: str
    readout: str
    source: SourceName = "finetune"


@dataclass(frozen=True)
class Study:
    """A study; ``prefix`` names readouts that each become a row, ``reference`` a hidden row.

    ``budget`` adds a column with the evaluations of the repair module.
    """

    name: str
    heading: str
    title: str
    metrics: tuple[str, ...] = ("rmse", "frmse")
    rows: tuple[Row, ...] = ()
    backbones: tuple[str, ...] = tuple(BACKBONES)
    prefix: str = ""
    reference: Row | None = None
    dagger: str = ""
    budget: bool = False


_FINETUNED = Row("finetuned", "Full finetuning", "source")
_FINAL = Row("irno_final", "IRNO (final depth)", "irno_final")
_M1 = Row("r2no_m1", "R2NO (M=1)", "r2no_m1")
_ALL = Row("r2no", "R2NO (all members)", "r2no")
_MAIN = (_FINETUNED, _FINAL, Row("irno_selected", "IRNO (l*)", "irno_selected"), _M1, _ALL)
_THREE, _TWO = ("unet", "fno", "dpot_s"), ("fno", "dpot_s")


def _named(key: str, label: str, source: SourceName = "finetune") -> Row:
    return Row(key, label, key, source)


STUDIES = {
    study.name: study
    for study in (
        Study("main", "Adaptation", "Adaptation to real measurements", rows=_MAIN),
        Study(
            "relative-l2",
            "Adaptation",
            "Relative L2 error",
            ("rel_l2",),
            (_FINETUNED, _FINAL, _M1, _ALL),
            budget=True,
        ),
        Study(
            "combination-rule",
            "Combination",
            "Combination rules on the same iterates",
            rows=(
                _named("mean_final", "Mean of final iterates"),
                _named("mean_all", "Mean of all iterates"),
                _named("global", "Global combination"),
                _named("r2no", "R2NO"),
            ),
            backbones=_THREE,
            reference=_FINETUNED,
        ),
        Study(
            "partition-axes",
            "Partition",
            "Partitions without one of their axes",
            rows=(
                _named("global", "Single cell"),
                _named("no_radial", "No radial axis"),
                _named("no_angular", "No angular axis"),
                _named("no_channel", "No channel axis"),
                _named("r2no", "Full partition"),
            ),
            backbones=_THREE,
        ),
        Study(
            "base-column",
            "Base column",
            "With and without the base column",
            rows=(_named("no_base", "Without"), _named("r2no", "With")),
            backbones=_THREE,
        ),
        Study(
            "columns",
            "Columns",
            "Number of retained depths at one repair budget",
            ("rmse", "frmse", "rel_l2"),
            backbones=_TWO,
            prefix="columns_",
        ),
        Study(
            "ridge",
            "Ridge",
            "Sweep of the ridge parameter",
            backbones=_TWO,
            prefix="ridge_",
            reference=_FINETUNED,
        ),
        Study(
            "pretrained-source",
            "Adaptation",
            "Adaptation of the operator that was never finetuned",
            rows=(
                Row("pretrained", "Pretrained (source)", "source", "pretrained"),
                _FINETUNED,
                _named("irno_final", "IRNO (final depth)", "pretrained"),
                _named("r2no_m1", "R2NO (M=1)", "pretrained"),
                _named("r2no", "R2NO (all members)", "pretrained"),
            ),
            backbones=_TWO,
            dagger="finetuned",
        ),
        Study(
            "beyond",
            "Adaptation",
            "Beyond the paper: columns that cost nothing, nested cells",
            ("rmse", "frmse", "rel_l2"),
            (
                _named("persistence", "Persistence"),
                _named("mean", "Mean field"),
                *_MAIN,
                _named("beyond_m0", "R2NO beyond (no module)"),
                _named("beyond_m1", "R2NO beyond (M=1)"),
                _named("beyond", "R2NO beyond (all members)"),
            ),
        ),
        Study("diagnostic", "Band", "Change of the regional fRMSE along the loop"),
        Study("theory", "Quantity", "Contraction, bias and the price of selection"),
        Study("qualitative", "Method", "One test window at five frames"),
        Study("cost", "Method", "Evaluations, seconds, memory, parameters"),
    )
}


def repair_budget(readout: str, *, members: int, steps: int) -> int:
    """Evaluations of the repair module that a readout consumes: members times largest depth."""
    if readout == "source":
        return 0
    return steps if readout in ("irno_final", "irno_selected", "r2no_m1") else members * steps


#: Studies whose table is read from scores; the others have tables of their own.
SCORED = tuple(name for name, study in STUDIES.items() if study.rows or study.prefix)


def study(name: str) -> Study:
    """A study by name.

    Raises:
        ConfigError: for an unknown name, with the nearest right one.
    """
    return STUDIES[choice("study", name.replace("_", "-"), tuple(STUDIES))]
