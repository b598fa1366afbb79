"""Values: the scores of a study, by backbone, system, row and metric; of a run, or the paper's."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from r2no import storage
from r2no._types import PathLike
from r2no.checks import choice
from r2no.errors import ConfigError
from r2no.realpdebench.study.config import FORMATS, beyond_file, is_beyond_done
from r2no.realpdebench.study.studies import (
    BACKBONES,
    PUBLISHED_MEMBERS,
    SCALES,
    SOURCES,
    SYSTEM_NAMES,
    Row,
    Study,
    repair_budget,
    study,
)

#: Backbone and system.
BackboneSystem = tuple[str, str]

DIGITS = 3
#: IRNO at the depth that the fit split selected, and at the final one.
SELECTED, FINAL = "irno_selected", "irno_final"
#: By (backbone, system, source).
Results = Mapping[tuple[str, str, str], dict[str, Any]]


@dataclass(frozen=True)
class Values:
    """Scores in physical units, keyed by (backbone, system, row, metric).

    Attributes:
        numbers: The scores.
        labels: Of the rows.
        starred: The (backbone, system, row) that a fit selected among the rows.
        budgets: Evaluations of the repair module by row.
        depths: (ℓ*, L) of a pair: the depth that the fit split selected, and the final one.
    """

    numbers: Mapping[tuple[str, str, str, str], float]
    labels: Mapping[str, str] = field(default_factory=dict)
    starred: frozenset[tuple[str, str, str]] = frozenset()
    budgets: Mapping[str, int] = field(default_factory=dict)
    depths: Mapping[BackboneSystem, tuple[int, int]] = field(default_factory=dict)

    def get(self, pair: BackboneSystem, row: str, metric: str) -> float | None:
        """A score of a row on a pair; ``None`` where there is none."""
        return self.numbers.get((*pair, row, metric))

    def rows(self) -> tuple[str, ...]:
        """The rows in the order of the table."""
        return tuple(dict.fromkeys(key[2] for key in self.numbers))

    def twins(self) -> frozenset[str]:
        """Rows that an earlier one says already: with one member all members are the first."""
        first = {label: row for row, label in reversed(list(self.labels.items()))}
        return frozenset(row for row, label in self.labels.items() if first[label] != row)

    def backbones(self) -> tuple[str, ...]:
        """The backbones, in the paper's order."""
        found = {key[0] for key in self.numbers}
        return tuple(name for name in BACKBONES if name in found)

    def systems(self) -> tuple[str, ...]:
        """The systems, in the paper's order."""
        found = {key[1] for key in self.numbers}
        return tuple(name for name in SYSTEM_NAMES if name in found)

    def pairs(self, rows: Iterable[str], metric: str) -> list[BackboneSystem]:
        """The pairs that have all of ``rows``; sums are always over such pairs."""
        wanted = tuple(rows)
        return [
            (backbone, system)
            for backbone in self.backbones()
            for system in self.systems()
            if all((backbone, system, row, metric) in self.numbers for row in wanted)
        ]

    def total(self, row: str, metric: str, pairs: Iterable[BackboneSystem]) -> float:
        """Sum of a row over pairs."""
        return math.fsum(self.numbers[(*pair, row, metric)] for pair in pairs)

    def lowered(self, row: str, reference: str, metric: str) -> float:
        """By how many percent ``row`` lowers the sum of ``reference``; NaN without pairs."""
        pairs = self.pairs((row, reference), metric)
        before = self.total(reference, metric, pairs)
        return 100 * (1 - self.total(row, metric, pairs) / before) if before else float("nan")

    def below(self, row: str, other: str, metric: str) -> list[BackboneSystem]:
        """Pairs in which ``row`` is lower than ``other``."""
        return [
            pair
            for pair in self.pairs((row, other), metric)
            if self.numbers[(*pair, row, metric)] < self.numbers[(*pair, other, metric)]
        ]

    def wins(self, row: str, other: str, metric: str) -> int:
        """In how many pairs ``row`` is lower than ``other``."""
        return len(self.below(row, other, metric))

    def at_final_depth(self, metrics: Iterable[str]) -> list[BackboneSystem]:
        """Pairs in which the fit split selected the final depth, ℓ* = L.

        Where ℓ* is not known (the paper prints none), those whose scores at ℓ* and at L agree.
        """

        def final(pair: BackboneSystem) -> bool:
            if pair in self.depths:
                return self.depths[pair][0] == self.depths[pair][1]
            return all(self.get(pair, SELECTED, m) == self.get(pair, FINAL, m) for m in metrics)

        return [pair for pair in self.pairs((SELECTED, FINAL), "rmse") if final(pair)]

    def best(self, pair: BackboneSystem, rows: Iterable[str], metric: str) -> set[str]:
        """The rows of lowest printed value; ties at that precision are all best."""
        shown = {
            row: printed(value, metric)
            for row in rows
            if (value := self.get(pair, row, metric)) is not None
        }
        lowest = min(map(float, shown.values()), default=0.0)
        return {row for row, text in shown.items() if float(text) == lowest}


def printed(value: float, metric: str) -> str:
    """A score in the table's units."""
    return f"{value / SCALES[metric]:.{DIGITS}f}"


def published_studies() -> tuple[str, ...]:
    """Studies of which the paper prints a table."""
    return tuple(_content()["studies"])


def published(name: str) -> Values:
    """The printed scores of a study, in physical units; its hidden reference is the main table's.

    Raises:
        ConfigError: if the paper prints no table of this study.
    """
    wanted = study(name)
    if wanted.name not in published_studies():
        raise ConfigError(
            f"The paper prints no table of `{wanted.name}`, only of "
            f"{', '.join(published_studies())}. Give a run with `--run FOLDER`."
        )
    numbers = _numbers(wanted.name)
    if wanted.reference is not None:
        key, backbones = wanted.reference.key, {place[0] for place in numbers}
        main = _numbers("main")
        numbers |= {k: v for k, v in main.items() if k[2] == key and k[0] in backbones}
    rows = [row for row in wanted.rows if wanted.budget]
    size = {"members": PUBLISHED_MEMBERS, "steps": 12}
    budgets = {row.key: repair_budget(row.readout, **size) for row in rows}
    labels = {row.key: _labelled(row, **size) for row in wanted.rows}
    return Values(numbers, labels, budgets=budgets)


def _labelled(row: Row, *, members: int, steps: int) -> str:
    """The label of a row, with the sizes of a run."""
    text = row.label.replace("(all members)", f"(M={members})")
    return text.replace("(final depth)", f"(l={steps})")


def _numbers(name: str) -> dict[tuple[str, str, str, str], float]:
    content = _content()
    return {
        (backbone, system, row, metric): value * content["scales"][metric]
        for backbone, rows in content["studies"][name].items()
        for row, metrics in rows.items()
        for metric, values in metrics.items()
        for system, value in zip(content["systems"], values, strict=True)
    }


@cache
def _content() -> dict[str, Any]:
    text = resources.files("r2no.realpdebench.study").joinpath("published.json").read_text()
    content: dict[str, Any] = json.loads(text)
    return content


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


def with_beyond(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """A pair's result with the rows of the file beside it, where there is one of the same key."""
    if not is_beyond_done(path, content["key"]):
        return content
    more = storage.read_json(beyond_file(path))["readouts"]
    return content | {"readouts": {**more, **content["readouts"]}}


def spectral_norm(content: Mapping[str, Any]) -> str:
    """Of the spectral loss that a result's modules were trained with."""
    return str(content["settings"]["repair"]["norm"])


def study_values(wanted: Study, results: Results) -> Values:
    """The scores of a study's rows."""
    rows = study_rows(wanted, results)
    if wanted.name == "beyond" and not any("beyond_m0" in c["readouts"] for c in results.values()):
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
    rows = list(wanted.rows)
    if wanted.prefix:
        found = [name for name in first["readouts"] if name.startswith(wanted.prefix)]
        rows += [Row(name, _sweep_label(name), name) for name in sorted(found, key=_sweep_value)]
    if wanted.reference is not None:
        rows.append(wanted.reference)
    size = {"members": first["members"], "steps": first["steps"]}
    return [replace(row, label=_labelled(row, **size)) for row in rows]


def _sweep_value(name: str) -> float:
    return float(name.split("_", 1)[1])


def _sweep_label(name: str) -> str:
    kind, value = name.split("_", 1)
    return f"{int(value)} columns" if kind == "columns" else f"λ = {float(value):.0e}"
