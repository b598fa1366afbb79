"""Column groups in an artifact: what each needs to be made again.

Recalled frames need a number, the mean field a tensor; an operator comes along as the source does
where that is possible. Others are given again when the artifact is read, and recognised by their
answer to the stored history.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2no import storage
from r2no._types import Operator
from r2no.adaptation.config import AdaptSettings
from r2no.adaptation.groups import (
    INSTANT,
    ColumnGroup,
    FurtherOperator,
    Instant,
    MeanField,
    Recall,
    further_operators,
)
from r2no.data.window import Fields
from r2no.ensemble import FittedEnsemble
from r2no.errors import ConfigError, FingerprintError
from r2no.operators.packing import check_describable, describe_source, load_source, save_source
from r2no.training import same_answer

_INSTANT_FILE = f"{INSTANT}.safetensors"
_MOST_FRAMES = 100_000  # more are taken for damage


def check_included(groups: Sequence[ColumnGroup]) -> None:
    """Refuse operators that cannot come along, before anything is written."""
    for group in groups:
        if isinstance(group, FurtherOperator):
            check_describable(group.operator)


def save_groups(
    groups: Sequence[ColumnGroup], folder: Path, *, include: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Write operators into ``folder``; returns descriptions of all groups and names of files."""
    described, files = [], []
    for group in groups:
        content: dict[str, Any] = {"kind": "given", "labels": list(group.labels)}
        if isinstance(group, Recall):
            content = {"kind": "recall", "frames": group.frames, "partners": group.with_partners}
        elif isinstance(group, MeanField):
            content = {"kind": "mean"}
        elif isinstance(group, Instant):
            content = {"kind": INSTANT}
            storage.save_tensors(folder / _INSTANT_FILE, *group.ensemble.state(sums=False))
            files.append(_INSTANT_FILE)
        elif include and isinstance(group, FurtherOperator) and describe_source(group.operator):
            how, names = save_source(group.operator, folder, stem=_stem(group.name))
            content = {**content, "kind": "operator", "operator": how}
            files += names
        described.append({"name": group.name, **content})
    return described, files


def group_tensors(
    groups: Sequence[ColumnGroup], probe: Tensor, answer: Tensor
) -> dict[str, Tensor]:
    """The mean field, and what the groups that may be given again forecast for the probe."""
    tensors: dict[str, Tensor] = {}
    for group in groups:
        if isinstance(group, MeanField):
            tensors["mean_field"] = group.field
        elif not isinstance(group, (Recall, Instant)):
            found = dict(group.forecasts(probe, answer))
            tensors |= {f"column.{label}": value.contiguous() for label, value in found.items()}
    return tensors


def is_described(groups: Any) -> bool:
    """Whether this is a list of groups as :func:`save_groups` describes them."""
    return isinstance(groups, list) and all(_is_group(content) for content in groups)


def _is_group(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        return False
    kind, labels = content.get("kind"), content.get("labels")
    if kind == "recall":
        frames = content.get("frames")
        return type(frames) is int and 0 < frames < _MOST_FRAMES and "partners" in content
    if kind == "operator" and not isinstance(content.get("operator"), dict):
        return False
    plain = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    return kind in ("mean", INSTANT) or (kind in ("given", "operator") and plain)


def group_labels(described: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Labels of the columns that an artifact's groups give."""
    labels: list[str] = []
    for content in described:
        if content["kind"] == "recall":
            labels += Recall(content["frames"]).labels
        else:
            own = content["kind"] in ("mean", INSTANT)
            labels += [content["kind"]] if own else content["labels"]
    return tuple(labels)


@torch.no_grad()
def load_groups(
    folder: Path,
    described: Sequence[Mapping[str, Any]],
    context: Mapping[str, Tensor],
    fields: Fields,
    *,
    also: Mapping[str, Operator | ColumnGroup] | None,
    trust: bool,
) -> tuple[ColumnGroup, ...]:
    """The groups of an artifact; those that it does not bring are taken from ``also``.

    Raises:
        ConfigError: if one is neither brought nor given, or needs consent.
        FingerprintError: if one forecasts something else than when it was saved.
    """
    given = {group.name: group for group in further_operators(also)}
    groups: list[ColumnGroup] = []
    for content in described:
        name = content["name"]
        if content["kind"] == "recall":
            groups.append(Recall(int(content["frames"]), bool(content["partners"])))
        elif content["kind"] == "mean":
            groups.append(_mean_field(context["mean_field"], fields))
        elif content["kind"] == INSTANT:
            groups.append(_instant(folder, groups, fields))
        else:
            group = given.pop(name, None) or _brought(folder, content, fields, trust)
            _check_answers(folder, group, content, context)
            groups.append(group)
    if given:
        raise ConfigError(
            f"`also` holds {sorted(given)}, which `{folder}` does not know. Its further operators "
            f"are {sorted(c['name'] for c in described if c['kind'] in ('given', 'operator'))}."
        )
    return tuple(groups)


def _instant(folder: Path, groups: Sequence[ColumnGroup], fields: Fields) -> Instant:
    """The instant forecast, which weighs the groups before it."""
    ensemble = FittedEnsemble.from_state(*storage.load_tensors(folder / _INSTANT_FILE))
    columns, known = ensemble.columns, {label for group in groups for label in group.labels}
    if columns.members or not set(columns.further) <= known or ensemble.cells.grid != fields.grid:
        raise ValueError("the instant forecast weighs other columns than the artifact has")
    if ensemble.measured != fields.measured:
        raise ValueError("the instant forecast is of other channels than the artifact's")
    return Instant(ensemble, tuple(groups))


def _mean_field(values: Tensor, fields: Fields) -> MeanField:
    shape = (*fields.grid, len(fields.channels))
    fits = tuple(values.shape) == shape and values.is_floating_point()
    if not fits or not bool(values.isfinite().all()):
        raise ValueError(f"the mean field must be finite real numbers of shape {shape}")
    return MeanField(values)


def _brought(folder: Path, content: Mapping[str, Any], fields: Fields, trust: bool) -> ColumnGroup:
    name = content["name"]
    if content["kind"] != "operator":
        raise ConfigError(
            f"`{folder}` does not bring `{name}`, one of its column groups. Pass it again, "
            f"`also={{{name!r}: ...}}`."
        )
    how = dict(content["operator"])
    return FurtherOperator(name, load_source(folder, how, fields, trust=trust, stem=_stem(name)))


def _check_answers(
    folder: Path,
    group: ColumnGroup,
    content: Mapping[str, Any],
    context: Mapping[str, Tensor],
) -> None:
    if list(group.labels) != list(content["labels"]):
        raise FingerprintError(
            f"`{group.name}` has columns {list(group.labels)}, but `{folder}` was fitted with "
            f"{content['labels']}."
        )
    for label, forecast in group.forecasts(context["probe"], context["answer"]):
        if not same_answer(forecast, context[f"column.{label}"]):
            raise FingerprintError(
                f"`{label}` forecasts something else for the stored history than when `{folder}` "
                "was saved. Give the operator it was fitted with."
            )


def _stem(name: str) -> str:
    return f"also-{name}"


def columns_in_words(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What the cells of an artifact combine, by group, as its manifest describes them."""
    settings = AdaptSettings(**manifest["settings"])
    chosen, members = settings.ensemble, settings.members
    found = {}
    if members:
        depths = chosen.depths
        which = "all" if depths == "auto" else ", ".join(map(str, depths))
        found["repair"] = f"{members} module{'s' * (members > 1)}, depths {which}"
    for content in manifest.get("groups", []):
        found[content["name"]] = _in_words(content)
    return found | ({"base": "the source itself, rescaled"} if chosen.base_column else {})


def _in_words(content: Mapping[str, Any]) -> str:
    """One group, by what :func:`save_groups` noted."""
    kind = content["kind"]
    if kind == "recall":
        partners = " and their quadrature partners" if content["partners"] else ""
        return f"last {content['frames']} frames of the history{partners}"
    if kind == "mean":
        return "mean field of the train split"
    if kind == INSTANT:
        return "what the cells make of the columns that cost nothing; repair loops start from it"
    number = len(content["labels"])
    words = f"{number} forecast{'s' * (number > 1)} of a further operator or group"
    return f"{words}, {'included' if kind == 'operator' else 'given again to load'}"
