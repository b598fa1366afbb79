import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from r2no.adaptation import load, read_stored
from r2no.cli.main import app
from r2no.data import audit_splits, shared_frames
from r2no.errors import ConfigError, FileDamagedError, FileMissingError
from r2no.report import (
    Evaluation,
    ReportData,
    collect,
    evaluate,
    render,
    store_evaluation,
    stored_evaluation,
    write_report,
)
from r2no.report.charts import Axes, Bar, Line, bar_chart, line_chart
from r2no.report.wording import METRICS, headline, in_order, metrics_of, mixed_units, readout_name
from tests.support import adapted as toy


@pytest.fixture(scope="module")
def data() -> ReportData:
    return collect(toy.model(), evaluation=toy.evaluation(gaps=True), title="Toy & <co>")


@pytest.fixture(scope="module")
def page(data) -> str:
    return render(data)


def assert_close(one: list[dict], two: list[dict]) -> None:
    """An artifact holds one half of the symmetric sums, so last bits of what follows differ."""
    assert len(one) == len(two) > 0
    for first, second in zip(one, two, strict=True):
        assert first.keys() == second.keys()
        assert first.get("group") == second.get("group")
        for name in first.keys() - {"group"}:
            assert first[name] == pytest.approx(second[name], rel=1e-9, abs=1e-12), name


def without_script(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def payload(page: str) -> dict:
    text = re.search(r'<script type="application/json" id="payload">(.*?)</script>', page)[1]

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


# -- the page ------------------------------------------------------------------------------------


def test_page_says_everything_without_script(page, data):
    plain = without_script(page)
    assert headline(data).line in plain
    for name in data.evaluation.scores:
        assert f'data-readout="{name}"' in plain
    sections = ["verdict", "scores", "helped", "retention", "errors", "fields"]
    for section in [*sections, "planning", "audit", "provenance"]:
        assert f'<section id="{section}"' in plain
    assert plain.index('id="verdict"') < plain.index('id="scores"')
    # interval, what helped, spectra (two), depth, lead, budget, data
    assert plain.count("<svg viewBox") >= 8
    assert len(re.findall(r'<img[^>]* src="data:image/png', plain)) >= 7  # maps, fields, scales
    assert data.provenance["hashes"]["source"] in plain


def test_page_asks_for_nothing_outside_itself(page):
    assert "http://" not in page
    assert "https://" not in page
    addresses = re.findall(r'(?:src|href|action|data)="([^"]*)"', without_script(page))
    assert addresses
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in addresses)
    assert "url(" not in page
    assert "@import" not in page


def test_policy_allows_the_pages_own_script_and_style_only(page):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    policy = policy.replace("&#39;", "'")
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    script = re.search(r"<script>(.*?)</script>", page, flags=re.DOTALL)[1]
    style = re.search(r"<style>(.*?)</style>", page, flags=re.DOTALL)[1]
    for text in (script, style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert " style=" not in without_script(page)  # the policy would drop it


def test_names_are_shown_and_never_run(page):
    assert page.count("<script") == 2
    assert "alert(&#34;x&#34;)" in page
    assert "<b>" not in page
    assert "Toy &amp; &lt;co&gt;" in page
    assert payload(page)["retention"]["channels"][1] == toy.HOSTILE


def test_same_data_give_the_same_page(page, data):
    assert render(data) == page
    assert render(collect(toy.model(), evaluation=toy.evaluation(True), title="Toy & <co>")) == page


def test_report_of_nan_scores_says_so(data):
    scores = {name: dict(row) for name, row in data.evaluation.scores.items()}
    shown = [key for key, _, _ in METRICS]
    unknown = sum(scores["irno_final"][key] is None for key in shown)
    scores["irno_final"]["rmse"] = None
    page = render(replace(data, evaluation=replace(data.evaluation, scores=scores)))
    row = re.search(r'data-readout="irno_final".*?</tr>', page, flags=re.DOTALL)[0]
    assert row.count("n/a") == unknown + 2  # the score and its change
    assert not re.search(r"\bnan\b", without_script(page), flags=re.IGNORECASE)


def test_evaluation_survives_json():
    before = toy.evaluation(gaps=True)
    text = json.dumps(before.to_json(), allow_nan=False)
    assert Evaluation.from_json(json.loads(text)).to_json() == before.to_json()
    with pytest.raises(FileDamagedError, match="format"):
        Evaluation.from_json({**before.to_json(), "format": "other"})


def test_source_of_an_older_evaluation_is_called_source():
    now = toy.evaluation(gaps=True).to_json()
    rows = {"finetuned" if name == "source" else name: row for name, row in now["scores"].items()}
    old = {**now, "scores": rows, "roles": {**now["roles"], "source": "finetuned"}}
    assert Evaluation.from_json(old).to_json() == now


def test_scripts_are_valid():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    for script in (files("r2no.report") / "templates").iterdir():
        if script.name.endswith(".js"):
            subprocess.run([node, "--check", str(script)], check=True)


# -- the verdict ---------------------------------------------------------------------------------


def verdict(data, decision, gain, interval, best="source", **more):
    found = {"decision": decision, "gain": gain, "interval": interval, "blocks": 6, "best": best}
    found |= {
        "kept": best,
        "gain_over_best": gain,
        "interval_over_best": interval,
        "within": False,
        **more,
    }
    return headline(replace(data, verdict=found, evaluation=None))


def test_verdict_is_said_in_plain_words(data):
    deploy = verdict(data, "deploy", 0.021, (0.013, 0.029))
    assert (deploy.kind, deploy.line) == ("deploy", "Deploy the adapted model")
    assert "2.1\u00a0% below the source's" in deploy.sentences[0]
    assert "1.3\u00a0% to 2.9\u00a0% below" in deploy.sentences[0]
    assert "before persistence and the mean field" in deploy.sentences[1]
    assert "the lower 95\u00a0% bound of the mean over the blocks is a gain" in deploy.sentences[-1]
    assert "lower end of the interval is a gain" in deploy.sentences[-1]
    unsure = verdict(data, "deploy", 0.021, (-0.013, 0.055))
    assert "1.3\u00a0% above to 5.5\u00a0% below" in unsure.sentences[0]
    assert "the interval includes a loss" in unsure.sentences[-1]
    keep = verdict(data, "keep the source", -0.004, (-0.02, -0.01))
    assert (keep.kind, keep.line) == ("keep", "Keep the source")
    assert "0.4\u00a0% above the source's" in keep.sentences[0]
    assert "1.0\u00a0% to 2.0\u00a0% above" in keep.sentences[0]
    assert "exactly as the source does" in keep.sentences[-1]


@pytest.mark.parametrize(
    ("best", "decision", "line"),
    [
        ("recall:1", "keep persistence", "Keep persistence"),
        ("mean", "keep the mean field", "Keep the mean field"),
        ("pretrained", "keep the pretrained", "Keep the pretrained operator"),
        ("CNO", "keep the CNO", "Keep the CNO"),
        ("recall:4", "keep the recall:4", "Keep the last frame but 3"),
    ],
)
def test_verdict_compares_with_the_best_that_needs_no_adaptation(data, best, decision, line):
    over = {"gain_over_best": -0.07, "interval_over_best": (-0.1, 0.02)}
    found = verdict(data, decision, 0.3, (0.2, 0.4), best, **over)
    assert (found.kind, found.line) == ("keep", line)
    name = line.removeprefix("Keep ")
    assert f"best forecast that needs no adaptation is {name}" in found.sentences[1]
    assert f"7.0\u00a0% above {name}'s" in found.sentences[1]
    assert f"below {name}'s by 1\u00a0%" in found.sentences[-1]
    assert not any(sign in " ".join(found.sentences) for sign in ("-7", "\u22127"))


def test_verdict_says_why_the_source_is_kept_before_a_better_forecast(data):
    found = verdict(data, "keep the source", 0.1, (-0.2, 0.3), "mean", kept="source")
    assert found.line == "Keep the source"
    assert "exactly as the source does: recordings are too few" in found.sentences[-1]


def test_verdict_of_one_recording_says_so(data):
    everywhere = verdict(data, "deploy", 0.1, (0.05, 0.15))
    within = verdict(data, "deploy", 0.1, (0.05, 0.15), within=True)
    assert not any("within this recording" in sentence for sentence in everywhere.sentences)
    assert any("within this recording" in sentence for sentence in within.sentences)


def test_both_gains_are_drawn(data):
    found = {**data.verdict, "best": "recall:1", "gain_over_best": 0.1}
    found["interval_over_best"] = (0.05, 0.2)
    page = render(replace(data, verdict=found))
    assert "Gain over the source with its" in page
    assert "Gain over persistence with its" in page
    assert "Gain over persistence with its" not in render(data)


def test_verdict_without_interval_draws_none(data):
    nothing = {"gain": 0.1, "interval": (-np.inf, 1.0), "best": "source", "blocks": 1}
    found = {**data.verdict, **nothing, "decision": "keep the source"}
    changed = replace(data, verdict=found)
    assert "too few blocks" in headline(changed).sentences[0]
    assert "Gain over the source with its" not in render(changed)


def test_published_fit_has_no_verdict():
    page = render(collect(toy.model("published")))
    assert "No verdict" in page
    assert '<section id="scores"' not in page


# -- what helped, and models without modules ------------------------------------------------------


def test_page_says_what_each_group_is_worth(page, data):
    plain = without_script(page)
    rows = re.findall(r'<tr><th scope="row">(.*?)<small>', plain.split('id="helped-table"')[1])
    order = ["Recall", "Damping", "Mean field", "Repair"]
    assert sorted(rows) == sorted(order)
    worth = {part["group"]: part["worth"] for part in data.contributions}
    assert [part["worth"] for part in data.contributions] == sorted(worth.values(), reverse=True)
    assert f"Recall: {100 * worth['recall']:.0f}\u00a0% worse without it" in plain
    model = toy.model()
    expected = {part.group: part.worth for part in model.contributions()}
    assert worth == expected


def test_bars_tell_rise_from_fall():
    bars = [Bar("a", 31.0, "31 % worse"), Bar("b", -2.0, "2 % better"), Bar("c", 0.0, "same")]
    chart = bar_chart(bars, Axes("n", "x", ""))
    assert chart.count('class="bar s2"') == 2
    assert chart.count('class="bar s1"') == 1
    assert "a: 31 % worse" in chart
    assert "nan" not in bar_chart([Bar("a", 0.0, "")], Axes("n", "x", ""))
    assert bar_chart([], Axes("n", "x", "")) == ""


@pytest.fixture(scope="module")
def instant() -> ReportData:
    scored = evaluate(toy.instant(), toy.split(range(20, 22)))
    return collect(toy.instant(), evaluation=scored, title="Instant")


def test_report_without_modules_says_so_and_shows_no_empty_figure(instant):
    assert set(instant.evaluation.scores) == {"source", "mean", "pretrained", "r2no_m0"}
    assert instant.evaluation.roles == {"source": "source", "r2no": "r2no_m0"}
    assert instant.evaluation.depth_change == instant.depth_change == []
    plain = without_script(render(instant))
    assert "This model has no repair module" in plain
    assert "no repair module;" in plain.split('id="provenance"')[1]
    assert "IRNO" not in plain
    assert "By depth and band" not in plain
    assert "Cheaper models" not in plain
    assert "R2NO, no module" in plain
    assert not re.search(r"<figure>\s*(<figcaption>.*?</figcaption>)?\s*</figure>", plain)


def test_report_of_a_stored_instant_model_is_the_same(instant, tmp_path):
    artifact = toy.instant().save(tmp_path / "instant.r2no")
    store_evaluation(artifact, instant.evaluation)
    found = collect(artifact)
    assert found.retention == instant.retention
    assert_close(found.contributions, instant.contributions)
    assert found.evaluation.to_json() == instant.evaluation.to_json()


def test_scores_stand_in_the_order_of_the_story(page):
    shown = re.findall(r'data-readout="([^"]*)"', without_script(page))
    first, last = ["mean", "source", "r2no_m0"], ["r2no_m1", "r2no_m2"]
    assert shown[:3] == first
    assert shown[-2:] == last
    assert in_order(["r2no_m2", "own", "persistence", "source"])[:2] == ["persistence", "own"]
    assert readout_name("r2no_m0")[0] == "R2NO, no module"
    assert readout_name("r2no_m12")[0] == "R2NO, 12 members"


# -- artifacts -----------------------------------------------------------------------------------


@pytest.fixture
def artifact(tmp_path):
    return toy.model().save(tmp_path / "toy.r2no")


def test_artifact_alone_gives_the_models_report(artifact):
    stored, live = collect(artifact), collect(toy.model(), title="toy.r2no")
    assert stored.retention == live.retention
    assert stored.verdict == live.verdict
    for name in ("contributions", "budget", "learning"):
        assert_close(getattr(stored, name), getattr(live, name))
    page = render(stored)
    assert '<section id="fields"' not in page
    assert "not known" in page
    assert stored.provenance["files"]["ensemble.safetensors"] in page


def test_stored_evaluation_is_part_of_the_artifact(artifact):
    assert stored_evaluation(artifact) is None
    store_evaluation(artifact, toy.evaluation())
    load(artifact, toy.model().source)
    assert collect(artifact).evaluation.to_json() == toy.evaluation().to_json()
    (artifact / "evaluation.json").write_text("{}")
    with pytest.raises(FileDamagedError, match=r"evaluation\.json"):
        read_stored(artifact)


def test_evaluation_of_an_earlier_model_is_not_shown(artifact):
    store_evaluation(artifact, toy.evaluation())
    stale = (artifact / "evaluation.json").read_bytes()
    toy.model("published").save(artifact)
    assert not (artifact / "evaluation.json").exists()
    (artifact / "evaluation.json").write_bytes(stale)  # put back by hand, but listed nowhere
    assert collect(artifact).evaluation is None


def test_artifact_without_its_source_cannot_be_scored(artifact):
    with pytest.raises(ConfigError, match="source"):
        collect(artifact, toy.split(range(20, 22)))


def test_windows_are_scored_on_the_way(tmp_path):
    path = write_report(toy.model(), tmp_path / "r.html", toy.split(range(20, 22)))
    assert path.read_text() == render(collect(toy.model(), evaluation=toy.evaluation()))


def test_command_writes_the_page(artifact, tmp_path):
    store_evaluation(artifact, toy.evaluation())
    out = tmp_path / "pages" / "report.html"
    run = CliRunner().invoke(app, ["report", str(artifact), "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert str(out) in run.output.replace("\n", "")
    assert 'data-readout="r2no_m2"' in out.read_text()
    missing = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert isinstance(missing.exception, FileMissingError)


# -- audit and charts ----------------------------------------------------------------------------


def test_audit_counts_shared_frames_and_gaps():
    splits = {
        "train": toy.split(range(3)),
        "fit": toy.split(range(2, 4)),
        "test": toy.split(range(20, 22), gaps=True),
    }
    rows = audit_splits(splits)
    assert [row["trajectories"] for row in rows] == [3, 2, 2]
    assert rows[0]["shared"] == {}
    fields, origins = splits["fit"].fields, splits["fit"].origins
    history, last = fields.history_frames, int(origins[:, 1].max())
    recorded = last + history + fields.horizon_frames
    assert rows[1]["frames"] == 2 * (recorded - history)
    assert rows[1]["shared"] == {"train": recorded}  # one recording, as the doctor counts it
    assert shared_frames(splits["train"], splits["fit"]) == recorded
    assert rows[2]["shared"] == {"train": 0, "fit": 0}
    assert rows[0]["gaps"] == 0
    assert rows[2]["gaps"] == pytest.approx(0.2, abs=0.02)


def test_chart_leaves_out_what_is_not_a_number():
    axes = Axes("name", "x", "y")
    assert line_chart([Line("a", [0, 1], [None, float("nan")])], axes) == ""
    chart = line_chart([Line("a", [0, 1, 2], [1.0, None, 3.0]), Line("b", [0], [None])], axes)
    assert chart.count('class="mark') == 3  # two points and the legend
    assert "nan" not in chart
    assert "<li>" in chart
    assert ">b<" not in chart


def test_log_chart_leaves_out_zero():
    chart = line_chart([Line("a", [0, 1, 2], [0.0, 0.1, 10.0])], Axes("n", "x", "y", log=True))
    assert chart.count('class="mark') == 3


def test_units_stand_on_lead_time_and_errors() -> None:
    fields = {"units": ["mm/s", "mm/s", "Pa"], "measured": [0, 1]}
    titles = dict((key, title) for key, title, _ in metrics_of(fields))
    assert titles["rmse"] == "RMSE (mm/s)"
    assert titles["r2"] == "R²"
    mixed = {**fields, "measured": [0, 2]}
    assert metrics_of(mixed)[0][1] == "RMSE"
    assert "channels in mm/s and Pa together" in mixed_units(mixed)
    assert mixed_units(fields) == mixed_units({"measured": [0]}) == ""
    assert metrics_of({"measured": [0]})[0][1] == "RMSE"


def test_scores_say_what_they_mean_of_one_channel_and_of_several_units(data) -> None:
    def energies(measured: list[int]) -> set[str]:
        shown = render(replace(data, fields={**data.fields, "measured": measured}))
        rows = re.findall(r"<tr data-readout.*?</tr>", shown, re.DOTALL)
        place = [key for key, _, _ in METRICS].index("ke_error") + 1  # after the change
        return {re.findall(r'<td class="n"[^>]*>\s*(.*?)</td>', row)[place] for row in rows}

    assert energies([0]) == {"n/a"}  # one channel has no kinetic energy; its score is 0
    assert "n/a" not in energies([0, 1])
    mixed = {**data.fields, "units": ["m/s", "Pa"], "measured": [0, 1]}
    assert mixed_units(mixed) in render(replace(data, fields=mixed))


def test_the_page_shows_how_sure_the_model_is(data, page):
    bands = data.evaluation.bands
    assert [row["nominal"] for row in bands["rows"]][-2:] == [0.9, 0.95]
    assert sum(bands["alarms"]) == pytest.approx(1)
    section = re.search(r'<section id="sure".*?</section>', page, flags=re.DOTALL)[0]
    assert section.count("<figcaption>") == 5
    assert "Half-width of the band" in section


def test_the_point_of_the_time_series_can_be_chosen_without_script(data, page):
    bands = data.evaluation.bands
    section = re.search(r'<section id="sure".*?</section>', without_script(page), re.DOTALL)[0]
    choices = re.findall(r'<input type="radio" name="point" id="(.*?)"( checked)?>', section)
    assert len(choices) == len(bands["points"]) * len(bands["channels"])
    assert [checked for _, checked in choices].count(" checked") == 1
    assert all(f'<label for="{name}">' in section for name, _ in choices)
    assert "<label" in section.split("checked>")[1]
    assert section.count("Forecast with its band, ") == len(choices)
    assert section.count('class="point"') == len(bands["points"])


def test_points_are_where_their_names_say(data):
    model, window = toy.model(), toy.split(range(20, 22), gaps=True)
    bands = data.evaluation.bands
    half = model.half_widths(bands["shown"])[0][..., list(model.fields.measured)]
    points = {point["name"]: point for point in bands["points"]}
    grid = window.fields.grid
    assert points["at the middle of the grid"]["place"] == [size // 2 for size in grid]
    widest = points["where the band is widest"]
    relative = (half.mean(0) / half.mean((0, 1, 2))).sum(-1)
    row, column = widest["place"]
    assert float(relative[row, column]) == pytest.approx(float(relative.max()))
    found = torch.tensor(widest["series"]["half_width"]).T
    torch.testing.assert_close(found, half[:, row, column], rtol=1e-3, atol=1e-6)


def test_an_evaluation_of_an_earlier_version_has_no_bands(data):
    content = data.evaluation.to_json()
    del content["bands"]
    old = Evaluation.from_json(content)
    assert old.bands == {}
    assert '<section id="sure"' not in render(replace(data, evaluation=old))


def test_an_evaluation_with_one_point_is_shown_as_it_was(data):
    content = data.evaluation.to_json()
    bands = dict(content["bands"])
    first = bands.pop("points")[0]
    series = {name: values[0] for name, values in first["series"].items()}
    old = Evaluation.from_json(
        {**content, "bands": {**bands, "point": first["place"], "series": series}}
    )
    section = re.search(
        r'<section id="sure".*?</section>', render(replace(data, evaluation=old)), re.DOTALL
    )[0]
    assert section.count("Forecast with its band, ") == 1
    assert section.count('class="point"') == 1
