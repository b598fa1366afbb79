"""Results of a run, read back as the values of a study."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r2no import storage
from r2no._types import PathLike
from r2no.checks import choice
from r2no.errors import ConfigError
from r2no.realpdebench.study.beyond import with_beyond
from r2no.realpdebench.study.config import FORMATS
from r2no.realpdebench.study.studies import (
    BACKBONES,
    SOURCES,
    SYSTEM_NAMES,
    Row,
    Study,
    repair_budget,
)
from r2no.realpdebench.study.values import Values

#: By (backbone, system, source).
Results = Mapping[tuple[str, str, str], dict[str, Any]]


def load_results(run: PathLike, norm: str | None = None) -> Results:
    """All results below a run's folder, in the paper's order.

    Args:
        run: The folder.
        norm: Of the spectral loss, ``ortho`` or ``forward``; needed where the run has both.

    Raises:
        ConfigError: if there are none, or they were made with different settings.
    """
    found = results_by_norm(run)
    if norm is None and len(found) > 1:
        raise ConfigError(
            f"`{run}` holds results of the spectral norms {' and '.join(found)}, which do not "
            "belong into one table. Choose with `--norm`, or set them side by side with "
            "`r2no bench compare`."
        )
    return found[choice("norm", norm, tuple(found))] if norm else next(iter(found.values()))


def results_by_norm(run: PathLike) -> dict[str, Results]:
    """The results of each norm of the spectral loss, the equation's first.

    Raises:
        ConfigError: if there are none, or those of one norm were made with different settings.
    """
    found: dict[str, dict[tuple[str, str, str], dict[str, Any]]] = {}
    for path in sorted((Path(run) / "results").glob("*.json")):
        content = storage.read_json(path)
        if content.get("format") in FORMATS:
            place = content["backbone"], content["system"], content["source"]
            same = found.setdefault(spectral_norm(content), {})
            if place not in same or content["format"] > same[place]["format"]:
                same[place] = with_beyond(content, path) | {"file": path.stem}
    if not found:
        raise ConfigError(f"`{run}` holds no results. Make some with `r2no bench run`.")
    for results in found.values():
        if len({content["settings_key"] for content in results.values()}) > 1:
            raise ConfigError(
                f"`{run}` holds results of different settings, which do not belong into one "
                "table. Run the study again with one setting, or give another folder."
            )
    order = [(b, s, o) for b in BACKBONES for s in SYSTEM_NAMES for o in SOURCES]
    return {
        norm: {place: found[norm][place] for place in order if place in found[norm]}
        for norm in sorted(found, reverse=True)
    }


def spectral_norm(content: Mapping[str, Any]) -> str:
    """Of the spectral loss that a result's modules were trained with."""
    return str(content["settings"]["repair"]["norm"])


def study_values(wanted: Study, results: Results) -> Values:
    """The scores of a study's rows."""
    rows = study_rows(wanted, results)
    if wanted.name == "beyond" and not any("beyond" in c["readouts"] for c in results.values()):
        raise ConfigError(
            "The run has no rows of the study `beyond`. Give `--beyond` to `r2no bench run`: it "
            "keeps the modules and adds a pass over the fit and the test split."
        )
    numbers = {}
    for row in rows:
        for (backbone, system, source), content in results.items():
            if source != row.source or row.readout not in content["readouts"]:
                continue
            for metric, value in content["readouts"][row.readout].items():
                numbers[backbone, system, row.key, metric] = float(value)
    first = next(iter(results.values()))
    size = {"members": first["members"], "steps": first["steps"]}
    return Values(
        numbers,
        {row.key: row.label for row in rows},
        _selected(wanted, results),
        {row.key: repair_budget(row.readout, **size) for row in rows if wanted.budget},
        {
            (backbone, system): (content["diagnostic"]["common_depth_fit"], content["steps"])
            for (backbone, system, source), content in results.items()
            if source == "finetune"
        },
    )


def _selected(wanted: Study, results: Results) -> frozenset[tuple[str, str, str]]:
    """The penalties that the held-out halves of the fit split chose."""
    if wanted.name != "ridge":
        return frozenset()
    return frozenset(
        (backbone, system, f"ridge_{content['ridges']['r2no']:.0e}")
        for (backbone, system, source), content in results.items()
        if source == "finetune"
    )


def study_rows(wanted: Study, results: Results) -> list[Row]:
    """The rows of a study, those of a sweep included, labelled for this run."""
    first = next(iter(results.values()))
    names = {"(all members)": f"(M={first['members']})", "(final depth)": f"(l={first['steps']})"}
    rows = list(wanted.rows)
    if wanted.prefix:
        found = [name for name in first["readouts"] if name.startswith(wanted.prefix)]
        rows += [Row(name, _sweep_label(name), name) for name in sorted(found, key=_sweep_value)]
    if wanted.reference is not None:
        rows.append(wanted.reference)
    for old, new in names.items():
        rows = [Row(r.key, r.label.replace(old, new), r.readout, r.source) for r in rows]
    return rows


def _sweep_value(name: str) -> float:
    return float(name.split("_", 1)[1])


def _sweep_label(name: str) -> str:
    kind, value = name.split("_", 1)
    return f"{int(value)} columns" if kind == "columns" else f"λ = {float(value):.0e}"
