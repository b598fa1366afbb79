"""Tables of the studies that are not scores of rows: diagnostic, theory, qualitative, cost."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r2no import storage
from r2no.errors import ConfigError
from r2no.realpdebench.study.config import FORMAT
from r2no.realpdebench.study.sheets import Cell, Sheet, cells
from r2no.realpdebench.study.studies import BACKBONES, SYSTEM_NAMES, study
from r2no.realpdebench.study.values import Results

FIELD_NAMES = {
    "target": "Target",
    "source": "Full finetuning",
    "irno_final": "IRNO",
    "r2no": "R2NO",
}
_PAIR = ("Backbone", "System")


def detail_sheet(name: str, results: Results, run: Path) -> Sheet:
    """The table of one of these studies."""
    wanted = study(name)
    if wanted.name not in _MAKERS:
        raise ConfigError(f"`{wanted.name}` is a table of scores.")
    titles, make, notes = _MAKERS[wanted.name]
    rows = []
    for (backbone, system, source), content in results.items():
        if source == "finetune":
            start = BACKBONES[backbone], SYSTEM_NAMES[system]
            rows += [cells(*start) + line for line in make(content, run)]
    width = max((len(row) for row in rows), default=2)
    header = tuple(("", title) for title in _filled((*_PAIR, *titles), width))
    return Sheet(wanted.title, header, tuple(rows), notes)


def _filled(titles: tuple[str, ...], width: int) -> list[str]:
    """The last title is repeated with numbers, for as many columns as there are."""
    extra = width - len(titles) + 1
    if extra <= 1:
        return list(titles[:width])
    return [*titles[:-1], *(f"{titles[-1]} {number}" for number in range(1, extra + 1))]


def _number(value: float) -> str:
    return f"{value:.3g}"


def _diagnostic(content: dict[str, Any], run: Path) -> Iterator[tuple[Cell, ...]]:
    found = content["diagnostic"]
    share = 100 * found["gap"] / found["common_error"] if found["common_error"] else 0.0
    bands = [
        f"{depth} ({found['change'][depth][band]:+.1f} %)"
        for band, depth in enumerate(found["best_depth_by_band"])
    ]
    start = found["common_depth_fit"], found["common_depth_test"], f"{share:.2f} %"
    yield cells(*start, *bands)


def _theory(content: dict[str, Any], run: Path) -> Iterator[tuple[Cell, ...]]:
    """The estimates of one pair, or dashes for a result of the first format."""
    if not has_theory(content):
        yield cells(*["-"] * 12)
        return
    found, price = content["theory"]["contraction"], content["theory"]["selection"]
    bounded = f"{found['bound_holds']} of {found['contracting']} of {found['windows']}"
    distance = " to ".join(map(_number, found["fixed_point_distance"])) or "-"
    names = "factor", "step_ratio", "pair_ratio", "bias"
    spreads = [" / ".join(map(_digits, found[key])) for key in names]
    errors = (_number(found[key][1]) for key in ("error_source", "error_final"))
    prices = _number(price["twice_total"]), _number(price["gap"])
    regions = f"{price['regions']} ({price['occupied']})"
    yield cells(*spreads, *errors, bounded, distance, price["trajectories"], regions, *prices)


def has_theory(content: dict[str, Any]) -> bool:
    """Whether a result holds today's estimates, not those of the first format."""
    return bool(content["format"] == FORMAT)


def _digits(value: float) -> str:
    """Enough of them to see on which side of 1 a ratio lies."""
    return f"{value:.5g}"


def _qualitative(content: dict[str, Any], run: Path) -> Iterator[tuple[Cell, ...]]:
    fields, _ = load_fields(content, run)
    errors = {
        name: (values - fields["target"]).square().mean((1, 2, 3)).sqrt()
        for name, values in fields.items()
        if name != "target"
    }
    for name, error in errors.items():
        best = [min(float(e[frame]) for e in errors.values()) for frame in range(len(error))]
        shown = (Cell(_number(float(v)), float(v) == b) for v, b in zip(error, best, strict=True))
        yield (Cell(FIELD_NAMES[name]), *shown)


def load_fields(content: dict[str, Any], run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stored fields of a pair's window, target first, and their frames and channels."""
    tensors, notes = storage.load_tensors(run / "results" / f"{content['file']}.safetensors")
    return {key: tensors[key] for key in FIELD_NAMES}, notes


def _cost(content: dict[str, Any], run: Path) -> Iterator[tuple[Cell, ...]]:
    """Evaluations, seconds and parameters of each method on one pair."""
    cost, members = content["cost"], content["members"]
    second = cost["seconds_per_window"]
    module, weights = cost["module_parameters"], cost["ensemble_weights"]
    share = second["readouts"] / max(len(content["readouts"]), 1)
    memory = f"{cost['peak_memory_bytes'] / 2**20:.0f}"
    start, loop, base = second["source"], second["rollout"] / members, cost["source_parameters"]
    steps = content["steps"]
    size = module, weights, cost["occupied_cells"], content["windows"]["val"]
    single = weights * (steps + 1) // (members * steps + 1)  # of the one-member ensemble
    rows = (
        ("Full finetuning", 0, start, base),
        ("IRNO", steps, start + loop, base + module),
        ("R2NO (M=1)", steps, start + loop + share, base + module + single),
        (
            f"R2NO (M={members})",
            members * steps,
            start + members * loop + share,
            base + members * module + weights,
        ),
    )
    for label, evaluations, seconds, parameters in rows if members > 1 else rows[:-1]:
        ratio = f"{cost['readouts_over_rollout']:.3f}"
        yield cells(label, evaluations, f"{seconds:.4g}", parameters, memory, ratio, *size)


_Maker = Callable[[dict[str, Any], Path], Iterator[tuple[Cell, ...]]]
_MAKERS: dict[str, tuple[tuple[str, ...], _Maker, tuple[str, ...]]] = {
    "diagnostic": (
        ("l* (fit)", "l* (test)", "gap", "best depth, band"),
        _diagnostic,
        (
            "Bands run from low to high frequency; in brackets the change of fRMSE at that depth.",
            "The gap is what one common depth costs, as a share of its squared error.",
            "l* (fit) is the depth of IRNO (l*); `r2no bench table main` counts how often it is L.",
        ),
    ),
    "theory": (
        (
            *("q", "step ratio", "pair ratio", "d", "e_0", "e_L", "bound holds"),
            *("distance to fixed point", "n", "N_Omega (occupied)", "2 sum xi", "gap"),
        ),
        _theory,
        (
            "q, the larger of both ratios, and d: smallest / median / largest over the windows, "
            "all channels, in the loop's units; q is estimated from below and refutes a "
            "contraction where it is not below 1.",
            "d is the step at the target as training completes it, unmeasured channels being the "
            "source's; e_0 and e_L are medians. The bound is evaluated where q < 1.",
            "2 sum xi is the Hoeffding price of choosing a depth in each of the N_Omega cells, "
            "with C_b from the n trajectories of the fit split, beside the gap that choosing wins "
            "there, in squared physical units.",
            "A row of dashes is a result of an earlier version with other estimates; `r2no bench "
            "run` scores it again, without training.",
        ),
    ),
    "qualitative": (
        ("Method", "RMSE, frame"),
        _qualitative,
        ("The middle window of the test split; the figure shows the same fields.",),
    ),
    "cost": (
        (
            *("Method", "evaluations", "s per window", "parameters", "peak MB"),
            *("readouts / roll-out", "of a module", "weights", "occupied cells", "fit windows"),
        ),
        _cost,
        (
            "Peak memory is of the process that ran the pair; readouts / roll-out compares all "
            "readouts of all studies with the roll-out that feeds them.",
            "The last four are of the pair: parameters of a repair module, weights of the "
            "ensemble of all members, occupied cells of a channel, windows of the fit split.",
        ),
    ),
}
