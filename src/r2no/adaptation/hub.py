"""Artifacts on a hub: upload with a generated model card, download by name."""

import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import huggingface_hub
import jinja2
import yaml

from r2no import storage
from r2no._repr import first_line
from r2no._types import Number, PathLike
from r2no.adaptation.model import AdaptedModel, IncludeSource
from r2no.adaptation.stored import read_manifest
from r2no.errors import ConfigError

#: Scores in the card's table, where they are given.
_SHOWN = ("rmse", "rel_l2", "r2", "frmse")

Scores = Mapping[str, Mapping[str, Number]]


def model_card(
    model: AdaptedModel,
    *,
    repo_id: str = "FOLDER",
    licence: str = "other",
    data: str | None = None,
    scores: Scores | None = None,
    included: bool = True,
) -> str:
    """The card, Markdown with YAML on top: what it is, verdict, scores, data, limits, licence.

    Args:
        model: The model.
        repo_id: Its name, for the lines that load it.
        licence: Identifier of a licence, for weights and data; r2no does not know yours.
        data: What it was fitted on, in a sentence.
        scores: Metrics by name of the method, such as of ``score_readouts``.
        included: Whether the artifact brings its source.
    """
    text = resources.files("r2no.adaptation").joinpath("model_card.md.jinja").read_text()
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False
    )
    head = {"license": licence, "library_name": "r2no", "tags": ["neural-operator", "sim-to-real"]}
    shown = [name for name in _SHOWN if scores and all(name in row for row in scores.values())]
    return environment.from_string(text).render(
        head=yaml.safe_dump(head, sort_keys=False),
        model=model,
        fields=model.fields,
        measured=[model.fields.channels[channel] for channel in model.fields.measured],
        verdict=model.verdict,
        repo_id=repo_id,
        licence=licence,
        data=data or "measurements that its owner does not describe here",
        scores=scores or {},
        shown=shown,
        included=included,
    )


def upload(
    model: AdaptedModel,
    repo_id: str,
    include_source: IncludeSource,
    card: Mapping[str, Any],
    *,
    private: bool,
    revision: str | None,
    message: str,
    api: huggingface_hub.HfApi | None,
) -> str:
    """Do what :meth:`AdaptedModel.push_to_hub` says; ``card`` is what its card is told."""
    api = api or huggingface_hub.HfApi()
    with tempfile.TemporaryDirectory(prefix="r2no-") as work:
        folder = model.save(Path(work) / "artifact", include_source=include_source)
        included = read_manifest(folder)["source"]["included"]
        text = model_card(model, repo_id=repo_id, **card, included=included)
        storage.write_text(folder / "README.md", text)
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit: Any = api.upload_folder(
            repo_id=repo_id, folder_path=folder, revision=revision, commit_message=message
        )
    return str(commit.commit_url)


def fetched(name: PathLike, revision: str | None, **options: Any) -> Path:
    """The folder of an artifact: ``name`` itself if it is one here, else what the hub has.

    Raises:
        ConfigError: if there is neither.
    """
    folder = Path(name)
    if folder.is_dir():
        if revision is not None:
            raise ConfigError(f"`revision` belongs to a hub, but `{folder}` is a folder here.")
        return folder
    try:
        return Path(huggingface_hub.snapshot_download(str(name), revision=revision, **options))
    except (
        huggingface_hub.errors.HFValidationError,
        huggingface_hub.errors.HfHubHTTPError,
        huggingface_hub.errors.LocalEntryNotFoundError,
    ) as error:
        raise ConfigError(
            f"`{name}` is neither a folder here nor an artifact on the hub: {first_line(error)} "
            "Check the name, the revision and, for private ones, `hf auth login`."
        ) from error
