"""Upload and download through the real huggingface_hub, against a hub on this machine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from tests.support.adapting import FIT, HISTORY, SETTINGS, TRAIN, Source, own_operator
from tests.support.hub_server import serve
from tests.support.model_hub import ModelHub

import r2no
from r2no.adaptation.hub import model_card
from r2no.errors import ConfigError


@pytest.fixture(scope="module")
def model() -> r2no.AdaptedModel:
    return r2no.adapt(own_operator(), TRAIN, FIT, members=1, settings=SETTINGS)


def test_model_pushed_to_a_hub_comes_back_the_same(
    model: r2no.AdaptedModel, tmp_path: Path
) -> None:
    (tmp_path / "hub").mkdir()
    created: list[Any] = []
    with serve(tmp_path / "hub", ModelHub, created=created) as (endpoint, _):
        api = huggingface_hub.HfApi(endpoint=endpoint, token="hf_test")
        address = model.push_to_hub("owner/name", api=api, licence="cc-by-4.0")
        assert "/commit/" in address
        assert created[0]["name"] == "name"
        again = r2no.AdaptedModel.from_pretrained(
            "owner/name", endpoint=endpoint, cache_dir=tmp_path / "cache", token=False
        )
        assert torch.equal(again.predict(HISTORY), model.predict(HISTORY))
        with pytest.raises(ConfigError, match="neither a folder here nor an artifact"):
            r2no.AdaptedModel.from_pretrained(
                "not a name", endpoint=endpoint, cache_dir=tmp_path / "cache", token=False
            )
    assert "license: cc-by-4.0" in (tmp_path / "hub" / "README.md").read_text()


class Noted(huggingface_hub.HfApi):
    """A client of a hub that notes what it is asked, and reads the folder that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, Any] = {}
        self.names: set[str] = set()
        self.card = ""

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.said |= {"repo": repo_id, **options}

    def upload_folder(self, *, folder_path: Path, **options: Any) -> Any:
        self.said |= options
        self.names = {path.name for path in folder_path.iterdir()}
        self.card = (folder_path / "README.md").read_text()
        return SimpleNamespace(commit_url="hub/commit/1")


def test_every_argument_of_an_upload_arrives(model: r2no.AdaptedModel) -> None:
    api = Noted()
    address = model.push_to_hub(
        "me/wave",
        include_source=False,
        data="two waves",
        scores={"r2no": {"rmse": 0.25}},
        private=False,
        revision="draft",
        message="first",
        api=api,
    )
    assert address == "hub/commit/1"
    assert (api.said["repo"], api.said["private"]) == ("me/wave", False)
    assert (api.said["revision"], api.said["commit_message"]) == ("draft", "first")
    assert "source.safetensors" not in api.names
    assert "two waves" in api.card
    assert "0.25" in api.card


def test_every_argument_of_loading_arrives(model: r2no.AdaptedModel, tmp_path: Path) -> None:
    path = model.save(tmp_path / "model.r2no", include_source=False)
    with pytest.raises(ConfigError, match="does not bring its source"):
        r2no.AdaptedModel.from_pretrained(path, trust_source=True)
    again = r2no.AdaptedModel.from_pretrained(path, source=model.source, device="cpu")
    assert again.source is model.source
    assert again.device == torch.device("cpu")


def test_folder_is_taken_before_the_hub(model: r2no.AdaptedModel, tmp_path: Path) -> None:
    path = model.save(tmp_path / "model.r2no")
    again = r2no.AdaptedModel.from_pretrained(path)
    assert torch.equal(again.predict(HISTORY), model.predict(HISTORY))
    with pytest.raises(ConfigError, match="`revision` belongs to a hub"):
        r2no.AdaptedModel.from_pretrained(path, revision="main")


def test_card_says_verdict_scores_licence_and_how_to_load(model: r2no.AdaptedModel) -> None:
    scores = {"source": {"rmse": 0.5, "r2": 0.1}, "r2no": {"rmse": 0.25, "r2": 0.6}}
    card = model_card(model, repo_id="me/wave", licence="mit", data="two waves", scores=scores)
    head = yaml.safe_load(card.split("---")[1])
    assert head["license"] == "mit"
    assert head["library_name"] == "r2no"
    assert model.verdict is not None
    assert f"**{model.verdict.decision}**" in card
    assert f"{100 * model.verdict.gain:+.1f} %" in card
    assert f"{100 * model.verdict.interval[0]:+.1f} to" in card
    assert "| method | rmse | r2 |\n| --- | ---: | ---: |\n| source | 0.5 | 0.1 |\n" in card
    assert "Fitted on two waves." in card
    assert 'from_pretrained("me/wave")' in card


def test_lines_of_the_card_load_the_model(model: r2no.AdaptedModel, tmp_path: Path) -> None:
    path = model.save(tmp_path / "model.r2no")
    code = model_card(model, repo_id=str(path)).split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"history": HISTORY}
    exec(code, names)
    assert torch.equal(names["forecast"], model.predict(HISTORY))


def test_card_of_a_referenced_source_asks_for_it() -> None:
    model = r2no.adapt(Source(), TRAIN, FIT, members=1, settings=SETTINGS)
    card = model_card(model, included=False)
    assert "source=operator" in card
    assert "does not bring its source" in card
