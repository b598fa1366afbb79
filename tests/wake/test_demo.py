import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from r2no import errors
from r2no.cli.main import app
from r2no.progress import Reporter
from r2no.report import stored_evaluation
from r2no.wake import WakeSettings
from r2no.wake.demo import DemoSettings, prepare

NAMES = {
    "persistence",
    "mean",
    "pretrained",
    "source",
    "r2no_m0",
    "irno_final",
    "irno_selected",
    "mean_final",
    "mean_all",
    "global",
    "r2no_m1",
    "r2no_m2",
    "r2no_published",
}


def small_wake(self: DemoSettings) -> WakeSettings:
    """Seconds of flow on a coarse grid; a frame is long, so that repeating the last one is poor."""
    few = replace(WakeSettings.quick(self.seed), numerical_train=2, real_train=2, real_test=1)
    few = replace(few, real_fit=6)  # enough for a verdict that is no close call
    short = replace(few, grid=(12, 24), frame_time=1.0, spin_up=8.0, settle=4.0)
    return replace(short, history=6, horizon=6, numerical_frames=14, real_frames=14)


@pytest.fixture(scope="module")
def less() -> Iterator[DemoSettings]:
    """The quick demo, with less of everything."""
    full = DemoSettings(quick=True, members=2)
    backbone = full.pretrain().model_copy(update={"updates": 36, "lr": 8e-3})
    train = full.adapt().repair.train.model_copy(update={"updates": 6})
    repair = full.adapt().repair.model_copy(update={"steps": 3, "train": train})
    adapt = full.adapt().model_copy(update={"repair": repair})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DemoSettings, "wake", small_wake)
        patch.setattr(DemoSettings, "pretrain", lambda _: backbone)
        patch.setattr(
            DemoSettings, "finetune", lambda _: backbone.model_copy(update={"updates": 6})
        )
        patch.setattr(DemoSettings, "adapt", lambda _: adapt)
        yield full


@pytest.fixture(scope="module")
def prepared(less: DemoSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that was stopped before its adaptation."""
    out = tmp_path_factory.mktemp("demo")
    prepare(out, less, Reporter(quiet=True))
    return out


@pytest.fixture(scope="module")
def demo(prepared: Path) -> tuple[Path, list[str], Result]:
    """The same demo, gone on with: it keeps the source."""
    arguments = ["demo", "--quick", "--members", "2", "--out", str(prepared)]
    before = trained(prepared)
    run = CliRunner().invoke(app, arguments)
    assert before.items() <= trained(prepared).items()
    return prepared, arguments, run


def trained(out: Path) -> dict[Path, int]:
    """When each training was written last."""
    return {path: path.stat().st_mtime_ns for path in out.glob("work/*/*/state.safetensors")}


def test_preparation_trains_the_source_alone(prepared):
    assert len(trained(prepared)) == 2
    assert not (prepared / "results.json").exists()


def test_demo_scores_every_readout_and_says_what_it_wrote(demo):
    out, _, run = demo
    assert run.exit_code == 0, run.output
    assert "stand-in" in run.output
    results = json.loads((out / "results.json").read_text())
    assert set(results["readouts"]) == NAMES
    assert results["seed"] == 0
    for scores in results["readouts"].values():
        assert {"rmse", "frmse", "frmse_full", "rel_l2", "r2"} <= set(scores)
    assert {"fields.png", "depth_by_band.png", "retention.png"} <= {p.name for p in out.iterdir()}


def test_demo_ends_with_a_small_report_of_the_same_scores(demo):
    out, _, run = demo
    assert f"{out}/report.html" in run.output.replace("\n", "")
    page = (out / "report.html").read_text()
    assert len(page) < 5_000_000
    results = json.loads((out / "results.json").read_text())
    stored = stored_evaluation(out / "wake.r2no")
    assert stored is not None
    assert stored.scores == results["readouts"]
    assert [row["shared"] for row in stored.audit[1:]] == [{"train": 0}, {"train": 0, "fit": 0}]
    assert all(f'data-readout="{name}"' in page for name in NAMES)


def test_learned_methods_beat_persistence(demo):
    results = json.loads((demo[0] / "results.json").read_text())["readouts"]
    learned = {name: s["rmse"] for name, s in results.items() if name != "persistence"}
    assert max(learned.values()) < results["persistence"]["rmse"]
    assert learned["r2no_m2"] < learned["source"]


def test_second_run_reuses_the_work_and_gives_the_same_bytes(demo):
    out, arguments, _ = demo
    before = (out / "results.json").read_bytes()
    stamps = trained(out)
    assert len(stamps) == 4
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (out / "results.json").read_bytes() == before
    assert trained(out) == stamps


def test_demo_says_what_helped_and_what_is_there_at_once(demo):
    out, _, run = demo
    words = " ".join(run.output.split())
    results = json.loads((out / "results.json").read_text())
    assert {part["group"] for part in results["contributions"]} == {
        "repair",
        "recall",
        "mean",
        "pretrained",
        "base",
    }
    assert "What helped?" in words
    assert words.index("│ r2no_m0") < words.index("│ irno_final") < words.index("│ r2no_m2")
    for name in ("r2no_m0", "r2no_m2"):
        verdict = results["ensembles"][name]["verdict"]
        assert f"{name}: {verdict['decision']}: RMSE {100 * abs(verdict['gain']):.1f} %" in words


def test_published_row_is_the_papers_method(demo):
    """All depths, no free columns, one group of lead time; on the modules of the demo."""
    results = json.loads((demo[0] / "results.json").read_text())
    row = results["ensembles"]["r2no_published"]
    assert (row["radial"], row["angular"], row["nested"]) == (128, 16, None)
    assert row["columns"] == 2 * 3 + 1
    assert row["lead_groups"] == 1
    assert results["ensembles"]["r2no_m2"]["columns"] > row["columns"]


def test_demo_without_modules(demo, monkeypatch):
    out, _, _ = demo
    none = DemoSettings(quick=True).adapt().model_copy(update={"members": 0})
    monkeypatch.setattr(DemoSettings, "adapt", lambda _: none)
    arguments = ["demo", "--quick", "--members", "0", "--out", str(out / "instant")]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    found = json.loads((out / "instant" / "results.json").read_text())
    assert set(found["readouts"]) == {"persistence", "mean", "pretrained", "source", "r2no_m0"}
    assert found["best_depth"] is None
    assert len(trained(out / "instant")) == 2  # the source's
    assert not (out / "instant" / "depth_by_band.png").exists()
    shown = CliRunner().invoke(app, ["inspect", str(out / "instant" / "wake.r2no"), "--json"])
    columns = json.loads(shown.output)["columns"]
    assert list(columns) == ["recall", "mean", "pretrained", "base"]
    assert "5 frames" in columns["recall"]
    assert "included" in columns["pretrained"]


def test_unknown_backbone_gets_the_nearest_name(tmp_path):
    arguments = ["demo", "--quick", "--backbone", "fnoo", "--out", str(tmp_path)]
    run = CliRunner().invoke(app, arguments)
    assert isinstance(run.exception, errors.ConfigError)
    assert "'fno'" in str(run.exception)
