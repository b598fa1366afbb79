"""The paper's tables as data."""

import json
from functools import cache
from importlib import resources
from typing import Any

from r2no.errors import ConfigError
from r2no.realpdebench.study.studies import Study, repair_budget, study
from r2no.realpdebench.study.values import Values


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
    budgets = {row.key: repair_budget(row.readout, members=3, steps=12) for row in rows}
    return Values(numbers, _labels(wanted), budgets=budgets)


def _labels(wanted: Study) -> dict[str, str]:
    """The paper's run has three members and twelve steps."""
    names = {"(all members)": "(M=3)", "(final depth)": "(l=12)"}
    labels = {row.key: row.label for row in wanted.rows}
    for old, new in names.items():
        labels = {key: label.replace(old, new) for key, label in labels.items()}
    return labels


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
