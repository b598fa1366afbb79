"""Two pairs of the mini preset through every study; interrupted, resumed, failed, cached."""

import json
import math
import multiprocessing
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from tests.support.stopping import Stop
from typer.testing import CliRunner

from r2no.adaptation import RepairLoops, load, readouts, score_readouts
from r2no.cli.main import app
from r2no.data import ArrayWindows
from r2no.data.normalise import Normaliser
from r2no.data.window import batches
from r2no.errors import ConfigError
from r2no.progress import SILENT
from r2no.realpdebench import write_tiny
from r2no.realpdebench.protocol.inputs import open_source
from r2no.realpdebench.study.config import BenchConfig, Pair
from r2no.realpdebench.study.details import load_fields
from r2no.realpdebench.study.figures import FIGURES, draw
from r2no.realpdebench.study.pair import released
from r2no.realpdebench.study.plan import plan_sheet
from r2no.realpdebench.study.readouts import retained_depths, stored_errors
from r2no.realpdebench.study.run import Outcome, in_processes, run_bench
from r2no.realpdebench.study.studies import STUDIES
from r2no.realpdebench.study.tables import compare_sheet, study_sheet
from r2no.realpdebench.study.theory import Contraction, errors_by_trajectory, selection_summary
from r2no.realpdebench.study.values import load_results
from r2no.repair_loop import RepairUNet

UNITS = [("cylinder", "fno"), ("combustion", "deeponet")]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"), ["cylinder", "combustion"])


@pytest.fixture(scope="module")
def finetuned_pair(data, tmp_path_factory) -> Path:
    """One pair, from its finetuned source."""
    out = tmp_path_factory.mktemp("bench")
    work(config(data, out, *UNITS[0], sources=("finetune",)))
    return out


@pytest.fixture(scope="module")
def pair(finetuned_pair, data) -> Path:
    """One pair, from both sources; the finetuned one is there."""
    work(config(data, finetuned_pair, *UNITS[0]))
    return finetuned_pair


@pytest.fixture(scope="module")
def run(pair, data) -> Path:
    """Two pairs, one of them from both sources, the other with the rows beyond the paper."""
    work(config(data, pair, *UNITS[1], beyond=True))
    return pair


def work(study: BenchConfig) -> None:
    states = [outcome.state for outcome in run_bench(study)]
    assert "failed" not in states
    assert states[-1] == "done"


def config(data: Path, out: Path, *names: str, **options: object) -> BenchConfig:
    systems = [name for name in names if name in ("cylinder", "combustion", "foil")]
    backbones = [name for name in names if name in ("fno", "deeponet")]
    given = {"systems": tuple(systems), "backbones": tuple(backbones), **options}
    return BenchConfig.of(preset="mini", data=data, out=out, **given)


def command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(item) for item in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_a_source_that_is_not_asked_for_is_not_run(finetuned_pair):
    assert set(load_results(finetuned_pair)) == {("fno", "cylinder", "finetune")}


def test_one_pair_has_a_result_of_each_source(pair):
    assert set(load_results(pair)) == {
        ("fno", "cylinder", source) for source in ("finetune", "pretrained")
    }


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_table_in_every_format(name, run):
    for form in ("md", "latex", "csv"):
        text = command("bench", "table", name, "--run", run, "--format", form)
        assert re.search(r"\d\.\d", text)
        assert "nan" not in text
    sheet = study_sheet(name, run)
    assert {len(row) for row in sheet.rows} == {len(sheet.header)}


def test_rows_beyond_the_paper_are_added_to_a_finished_run(data, finetuned_pair, tmp_path):
    shutil.copytree(finetuned_pair, tmp_path / "run")
    out = tmp_path / "run"
    result = out / "results" / "cylinder-fno-finetune.json"
    before = result.read_bytes()
    asked = config(data, out, *UNITS[0], sources=("finetune",), beyond=True)
    (outcome,) = run_bench(asked)
    assert (outcome.state, result.read_bytes()) == ("done", before)  # the paper's rows stay
    content = load_results(out)["fno", "cylinder", "finetune"]
    theirs = json.loads(before)["readouts"]
    assert content["readouts"].items() >= theirs.items()
    wanted = {"persistence", "mean", "beyond_m0", "beyond_m1", "beyond"}
    assert set(content["readouts"]) - set(theirs) == wanted
    rows = [line[1].text for line in study_sheet("beyond", out).rows]
    assert {"Persistence", "Full finetuning", "R2NO beyond (no module)"} <= set(rows)
    (outcome,) = run_bench(asked)
    assert outcome.state == "cached"
    for path in (out / "results").glob("*.beyond.json"):
        path.unlink()
    with pytest.raises(ConfigError, match="--beyond"):
        study_sheet("beyond", out)


def test_one_member_is_named_once_and_stands_beside_the_papers_one_member(
    data, finetuned_pair, tmp_path
):
    shutil.copytree(finetuned_pair / "sources", tmp_path / "sources")
    work(config(data, tmp_path, *UNITS[0], sources=("finetune",), members=1, seed=7, beyond=True))
    results = load_results(tmp_path)
    (content,) = results.values()
    assert content["settings"]["seed"] == 7
    assert content["readouts"]["beyond"] == content["readouts"]["beyond_m1"]
    for name in ("main", "relative-l2", "beyond", "cost"):
        sheet = study_sheet(name, tmp_path)
        labels = [row[{"cost": 2}.get(name, 1)].text for row in sheet.rows]
        assert labels.count("R2NO (M=1)") == 1
        assert len(set(labels)) == len(labels)
        assert not any("(M=1) against R2NO (M=1)" in note for note in sheet.notes)
    compared = compare_sheet("main", results)
    (row, _) = (row for row in compared.rows if row[2].text == "R2NO (M=1)")
    assert row[5].text == "3.912"  # the paper's FNO on the cylinder with one module
    assert any("This run has M=1" in note for note in compared.notes)


@pytest.fixture
def drawn(run, tmp_path, monkeypatch):
    """Draw a study; the figures that were written, by their file's name, and the files."""
    figures, save = [], Figure.savefig

    def remembered(self, path, **options):
        figures.append(self)
        save(self, path, **options)

    def draw_study(name):
        monkeypatch.setattr(Figure, "savefig", remembered)
        paths = draw(name, load_results(run), run, tmp_path)
        return {path.stem: figure for path, figure in zip(paths, figures, strict=True)}, paths

    return draw_study


def lines(axis):
    return [np.asarray(line.get_ydata(), float) for line in axis.lines]


def finetuned(run):
    return {key[:2]: content for key, content in load_results(run).items() if key[2] == "finetune"}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_shows_finite_values_under_a_title(name, drawn):
    figures, paths = drawn(name)
    assert figures
    for figure in figures.values():
        shown = [axis for axis in figure.axes if axis.has_data()]
        assert shown
        for axis in shown:
            values = lines(axis) + [np.ma.getdata(image.get_array()) for image in axis.images]
            values = [found for found in values if np.size(found)]
            assert values or axis.patches or axis.collections
            assert all(np.isfinite(found).any() for found in values)
        assert any(axis.get_title() or axis.get_ylabel() for axis in shown)
    for path in paths:
        pixels = imread(path)[..., :3]
        assert min(pixels.shape[:2]) > 100
        assert 0.001 < (pixels < 0.98).any(-1).mean() < 0.999  # neither blank nor full


def test_diagnostic_figure_shows_the_change_of_each_band(run, drawn):
    figures, _ = drawn("diagnostic")
    for (backbone, system), content in finetuned(run).items():
        change = stored_errors(content["diagnostic"]).change()[0].numpy()
        found = lines(figures[f"diagnostic-{system}-{backbone}"].axes[0])
        for band in change.T:
            assert any(np.array_equal(band, line) for line in found)


def test_columns_figure_ends_at_the_error_of_all_columns(drawn):
    figures, _ = drawn("columns")
    curves = lines(figures["columns"].axes[0])
    assert curves
    assert all(len(curve) > 2 and curve[-1] == 1 for curve in curves)


def test_ridge_figure_shows_the_mean_rmse_of_each_penalty(run, drawn):
    figures, _ = drawn("ridge")
    found = lines(figures["ridge"].axes[0])
    for content in finetuned(run).values():  # one system of each backbone
        scores = content["readouts"]
        ridges = sorted((name for name in scores if name.startswith("ridge_")), key=_penalty)
        expected = [scores[name]["rmse"] for name in ridges]
        assert any(np.allclose(curve, expected) for curve in found if len(curve) == len(expected))


def _penalty(name: str) -> float:
    return float(name.removeprefix("ridge_"))


def test_qualitative_figure_shows_the_stored_fields(run, drawn):
    figures, _ = drawn("qualitative")
    for (backbone, system), content in finetuned(run).items():
        fields, _ = load_fields(content, run)
        images = [
            np.asarray(image.get_array())
            for name, figure in figures.items()
            if name.startswith(f"qualitative-{system}-{backbone}")
            for axis in figure.axes
            for image in axis.images
        ]
        for values in fields.values():
            for frame in values[..., 0].numpy():
                assert any(np.array_equal(frame, image) for image in images)


def test_theory_figure_shows_the_errors_of_the_iterates(run, drawn):
    figures, _ = drawn("theory")
    for (backbone, system), content in finetuned(run).items():
        errors = content["theory"]["contraction"]["errors"]
        if errors:
            found = lines(figures[f"theory-{system}-{backbone}"].axes[0])
            assert any(np.array_equal(line, errors) for line in found)


def test_readouts_equal_those_of_the_adapted_model(run, data):
    """The joint composition gives what each readout gives by itself."""
    pair = Pair(config(data, run, "cylinder", "fno"), "cylinder", "fno", "finetune")
    (folder,) = (run / "adapt").glob("cylinder-fno-finetune-*")
    reading = pair.config.benchmark("cylinder", "fno")
    path = folder / "model.r2no" / "source.safetensors"
    source = open_source(reading, path, cache=None, reporter=SILENT)
    model = load(folder / "model.r2no", source.operator)
    scores, errors = score_readouts(
        model, pair.config.windows(pair.system)["test"], readouts(model)
    )
    found = json.loads(pair.result.read_text())
    names = {"r2no_m3": "r2no"}
    for name, metrics in scores.items():
        ours = found["readouts"][names.get(name, name)]
        assert ours == pytest.approx(metrics, rel=1e-4, abs=1e-7)
    assert found["diagnostic"]["gap"] == pytest.approx(errors.gap(), rel=1e-4)


def test_sweeps_end_at_the_operating_point(run):
    for content in load_results(run).values():
        scores = content["readouts"]
        steps, members = content["steps"], content["members"]
        assert scores[f"columns_{members * steps + 1:03d}"] == scores["r2no"]
        assert scores[f"ridge_{content['ridges']['r2no']:.0e}"] == scores["r2no"]
        assert sum(name.startswith("ridge_") for name in scores) == 9
    assert retained_depths(12, 1) == (12,)
    assert retained_depths(12, 8) == (2, 3, 5, 6, 8, 9, 11, 12)


def test_one_measured_channel_makes_the_channel_axis_idle(run):
    found = load_results(run)["deeponet", "combustion", "finetune"]["readouts"]
    assert found["no_channel"]["rmse"] == pytest.approx(found["r2no"]["rmse"], rel=1e-6)


def test_finished_pairs_are_kept_and_a_failed_one_does_not_stop_the_rest(run, data):
    before = {path: path.read_bytes() for path in (run / "results").iterdir()}
    outcomes = run_bench(config(data, run, "foil", "cylinder", "fno"))  # there is no foil data
    states = {outcome.name: outcome.state for outcome in outcomes}
    assert states == {
        "foil-fno-finetune": "failed",
        "foil-fno-pretrained": "failed",
        "cylinder-fno-finetune": "cached",
        "cylinder-fno-pretrained": "cached",
    }
    assert "foil" in (run / "failures" / "foil-fno-finetune.txt").read_text()
    assert {path: path.read_bytes() for path in (run / "results").iterdir()} == before
    assert len(load_results(run)) == 3


def test_command_says_what_is_there_and_exits_with_1_after_a_failure(run, data):
    common = ["bench", "run", "--preset", "mini", "--data", data, "--out", run]
    common += ["--backbone", "fno", "--system"]
    assert "2 of 2 results" in command(*common, "cylinder")
    failed = CliRunner().invoke(app, [str(item) for item in (*common, "foil")])
    assert failed.exit_code == 1
    assert "Failed: foil-fno-finetune" in failed.stdout


def test_processes_find_the_same_cache(run, data):
    outcomes = run_bench(config(data, run, "cylinder", "fno"), jobs=2, threads=1)
    assert [outcome.state for outcome in outcomes] == ["cached", "cached"]


def dying(unit: tuple[str, str]) -> list[Outcome]:
    if unit[1] == "fno":
        os._exit(1)
    return [Outcome(unit[0], "done")]


def test_a_process_that_dies_fails_alone(monkeypatch):
    """Three pools in turn, of processes that find the library imported already."""
    multiprocessing.set_forkserver_preload([in_processes.__module__])
    monkeypatch.setattr("r2no.realpdebench.study.run.START_METHOD", "forkserver")
    units = [("cylinder", "fno"), ("foil", "unet")]
    found = dict(in_processes(dying, units, jobs=1, threads=1))
    assert found[units[0]].exception() is not None
    assert found[units[1]].result() == [Outcome("foil", "done")]


def test_interrupted_run_goes_on_and_ends_in_the_same_scores(run, data, tmp_path, monkeypatch):
    study = config(data, tmp_path, "combustion", "deeponet")
    shutil.copytree(run / "sources", tmp_path / "sources")  # interrupted beyond their training
    from r2no.realpdebench.study import readouts
    from r2no.training import problems

    for module, name, calls in ((problems, "gather", 12), (readouts, "spectrum_energy", 20)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, Stop(getattr(module, name), calls))
            with pytest.raises(KeyboardInterrupt):
                run_bench(study)
        assert not (tmp_path / "results").exists()
    plan = plan_sheet(study, calibrate=False)
    assert [cell.text for cell in plan.rows[0][3:6]] == ["cached", "cached", "to do"]
    (outcome,) = run_bench(study)
    assert outcome.state == "done"
    name = "combustion-deeponet-finetune.json"
    ours, theirs = (json.loads((out / "results" / name).read_text()) for out in (tmp_path, run))
    for key in ("key", "readouts", "ridges", "diagnostic", "theory", "data"):
        assert ours[key] == theirs[key]


def test_plan_counts_what_is_left(run, data, tmp_path):
    text = command(
        *("bench", "plan", "--preset", "mini", "--data", data, "--out", run),
        *("--system", "cylinder", "--backbone", "fno"),
    )
    assert "2 results, 2 cached; 0 evaluations" in text
    fresh = plan_sheet(config(data, tmp_path, "cylinder", "fno"))
    pair = Pair(config(data, tmp_path, "cylinder", "fno"), "cylinder", "fno", "finetune")
    sizes = {split: len(windows) for split, windows in pair.config.windows(pair.system).items()}
    batch = min(8, sizes["train"])
    expected = 3 * 4 * (8 * batch + 2 * sizes["val"] + sizes["val"] + sizes["test"])
    expected += 4 * sizes["val"]  # the first member's errors by cell
    assert fresh.rows[0][6].text == str(expected)


def test_comparison_sets_each_pair_beside_the_published_one(run):
    text = command("bench", "compare", "--run", run, "--study", "main")
    assert "| FNO | Cylinder | R2NO (M=3) | RMSE |" in text
    assert "| 3.432 |" in text
    assert "mini preset" in text
    assert command("bench", "compare", "--run", run).count("ours against published") == 6


def test_results_of_different_settings_are_not_mixed(run, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    for number, path in enumerate(sorted((run / "results").glob("*.json"))):
        content = json.loads(path.read_text()) | {"settings_key": str(number)}
        (folder / path.name).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="different settings"):
        load_results(tmp_path)
    with pytest.raises(ConfigError, match="holds no results"):
        load_results(tmp_path / "nothing")


def kept_model(run: Path, data: Path, system: str, backbone: str):
    """The adapted model of a finished pair, and its windows."""
    pair = Pair(config(data, run, system, backbone), system, backbone, "finetune")
    (folder,) = (run / "adapt").glob(f"{pair.name}-*")
    path = folder / "model.r2no" / "source.safetensors"
    reading = pair.config.benchmark(system, backbone)
    source = open_source(reading, path, cache=None, reporter=SILENT)
    return load(folder / "model.r2no", source.operator), pair.config.windows(pair.system)


def test_errors_by_trajectory_add_up_to_those_of_the_fit_split(run, data):
    model, windows = kept_model(run, data, "cylinder", "fno")
    found = errors_by_trajectory(model, windows["val"], SILENT)
    assert found.shape[1:] == (5, 16 * 4, 2)
    counts = windows["val"].origins[:, 0].unique(return_counts=True)[1]
    total = (found * counts[:, None, None, None]).sum((0, 2, 3))
    torch.testing.assert_close(total, model.fit_errors.total()[0], rtol=1e-5, atol=0)


def test_price_of_selection_is_of_all_cells_with_bounds_of_the_fit_split():
    errors = torch.zeros(2, 3, 4, 2, dtype=torch.float64)  # trajectory, depth, cell, channel
    errors[0, :, 0, 0] = torch.tensor([4.0, 1.0, 2.0])
    errors[1, :, 0, 0] = torch.tensor([2.0, 3.0, 2.0])
    errors[1, :, 3, 1] = torch.tensor([1.0, 5.0, 5.0])
    found = selection_summary(errors, checkpoints=12)
    assert (found["trajectories"], found["regions"], found["occupied"]) == (2, 8, 2)
    unit = math.sqrt(math.log(2 * 8 * 3 * 12 / 0.05) / (2 * 2))
    assert found["twice_total"] == pytest.approx(2 * (4 + 5) * unit)
    assert found["gap"] == pytest.approx((3 + 0.5) - (2 + 0.5))  # depth 0 against 1 or 2 and 0


def test_results_hold_the_price_of_all_cells(run, data):
    for (_, system, _), content in load_results(run).items():
        price = content["theory"]["selection"]
        channels = {"cylinder": 2, "combustion": 1}[system]
        pair = Pair(config(data, run, system, "fno"), system, "fno", "finetune")
        origins = pair.config.windows(pair.system)["val"].origins
        assert price["regions"] == 16 * 4 * channels
        assert price["occupied"] <= content["cost"]["occupied_cells"] * channels
        assert price["trajectories"] == len(origins[:, 0].unique())


def test_contraction_is_of_all_channels_at_the_target_as_trained(rng):
    frames = torch.randn(6, 8, 8, 3, generator=rng)
    windows = ArrayWindows([frames.numpy()], 2, 2, measured=(0, 1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = RepairUNet(2 * 3, 2 * 3, 4, 1).eval()
        module.last.weight.data.mul_(100)  # a step large enough to tell targets apart
    scale = Normaliser(torch.tensor([1.0, 0.0, -1.0]), torch.tensor([2.0, 1.0, 0.5]))
    loops = RepairLoops((module,), Normaliser.identity(3), scale, 4, 0.2)
    numbers, window = next(iter(batches(windows, 1)))
    source = torch.randn(1, 2, 8, 8, 3, generator=rng)
    found = Contraction(loops, windows, 1)
    with torch.no_grad():
        found.begin(numbers, window)
        found.iterate(0, 0, source, None)
        for member, depth, iterate in loops(window.history, source):
            found.iterate(member, depth, iterate, None)
        found.end()
        target = window.target.clone()
        target[..., 2] = source[..., 2]  # not measured
        step = 0.2 * module(window.history, scale(target))
        zeroed = 0.2 * module(window.history, scale(window.target))
    (report,) = found.reports
    assert report.bias == pytest.approx(float(step.norm()), rel=1e-4)
    assert abs(report.bias - float(zeroed.norm())) > 1e-3
    assert report.errors[0] == pytest.approx(float((scale(source) - scale(target)).norm()))


def test_results_of_the_first_format_are_read_and_scored_again_without_training(
    run, data, tmp_path
):
    shutil.copytree(run, tmp_path / "old")
    old, pair = tmp_path / "old", "combustion-deeponet-finetune"
    path = old / "results" / f"{pair}.json"
    content = json.loads(path.read_text())
    for key in ("step_ratio", "pair_ratio"):
        del content["theory"]["contraction"][key]
    for key in ("regions", "occupied", "common_error"):
        del content["theory"]["selection"][key]
    path.write_text(json.dumps(content | {"format": "r2no.bench/1"}))
    for name in STUDIES:
        assert study_sheet(name, old).rows
    (line,) = (row for row in study_sheet("theory", old).rows if row[0].text == "DeepONet")
    assert {cell.text for cell in line[2:]} == {"-"}
    assert len(draw("theory", load_results(old), old, tmp_path / "figures")) == 1
    (artifact,) = (old / "adapt").glob(f"{pair}-*/model.r2no/manifest.json")
    before = artifact.read_bytes(), artifact.stat().st_mtime_ns
    (outcome,) = run_bench(config(data, old, "combustion", "deeponet"))
    assert outcome.state == "done"
    assert (artifact.read_bytes(), artifact.stat().st_mtime_ns) == before
    again = json.loads(path.read_text())
    theirs = json.loads((run / "results" / path.name).read_text())
    assert again["readouts"] == theirs["readouts"]
    assert again["theory"] == theirs["theory"]


def test_both_norms_of_the_spectral_loss_stand_side_by_side(run, data, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(run, both)
    before = {path: path.read_bytes() for path in (both / "results").iterdir()}
    common = ["bench", "run", "--preset", "mini", "--data", data, "--out", both]
    common += ["--system", "combustion", "--backbone", "deeponet"]
    assert "2 of 2 results" in command(*common, "--norm", "ortho", "--norm", "forward")
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(ConfigError, match=r"norms ortho and forward.*--norm"):
        load_results(both)
    with pytest.raises(ConfigError, match="Did you mean 'forward'"):
        load_results(both, "foward")
    ortho, forward = (load_results(both, norm) for norm in ("ortho", "forward"))
    assert (len(ortho), list(forward)) == (3, [("deeponet", "combustion", "finetune")])
    pair = ("deeponet", "combustion", "finetune")
    assert ortho[pair]["readouts"]["r2no"] != forward[pair]["readouts"]["r2no"]
    assert ortho[pair]["readouts"]["source"] == forward[pair]["readouts"]["source"]
    text = command("bench", "compare", "--run", both, "--study", "main")
    assert "| Ours (ortho) | Ours (forward) | Published |" in text
    assert "norm=forward, coefficients divided by the number of grid points" in text
    assert "norm=ortho, the unitary transform" in text
    rows = [row for row in text.splitlines() if row.startswith("| FNO | Cylinder |")]
    assert rows
    assert all(row.count("| - |") for row in rows)  # not run with the other norm
    assert "Wrote" in command("bench", "figure", "qualitative", "--run", both, "--norm", "forward")
    assert list((both / "figures-forward").glob("*.png"))


def test_comparison_names_the_norm_of_a_single_run(run):
    sheet = compare_sheet("main", load_results(run))
    assert ("", "Ours (ortho)") in sheet.header
    assert any("norm=ortho, the unitary transform" in note for note in sheet.notes)


def test_qualitative_figures_show_every_measured_channel(run, tmp_path):
    names = {path.stem for path in draw("qualitative", load_results(run), run, tmp_path)}
    assert names == {
        "qualitative-cylinder-fno-u",
        "qualitative-cylinder-fno-v",
        "qualitative-combustion-deeponet-observed",
    }


def test_figure_1_shows_a_measurement_and_the_regions_of_each_system(run, tmp_path):
    for name in ("observation", "regions"):
        paths = draw(name, load_results(run), run, tmp_path)
        assert [path.stem for path in paths] == [f"{name}-combustion", f"{name}-cylinder"]
    with pytest.raises(ConfigError, match="Did you mean 'regions'"):
        draw("region", load_results(run), run, tmp_path)


def test_released_cno_is_refused_until_it_is_accepted(data, tmp_path):
    path = tmp_path / "weights" / "cylinder" / "cno" / "finetune.pth"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"released")
    given = {"preset": "mini", "data": data, "out": tmp_path / "out", "systems": ("cylinder",)}
    given |= {"backbones": ("cno",), "checkpoints": tmp_path / "weights"}
    study = BenchConfig.of(**given)
    assert released(Pair(study, "cylinder", "cno", "pretrained")) is None
    message = r"finetune\.pth.*does not work.*0\.03524.*--accept"
    for refused in (
        lambda: released(Pair(study, "cylinder", "cno", "finetune")),
        lambda: run_bench(study),
        lambda: plan_sheet(study, calibrate=False),
    ):
        with pytest.raises(ConfigError, match=message):
            refused()
    assert not (tmp_path / "out").exists()  # before any work
    accepted = BenchConfig.of(**given, accept=True)
    assert released(Pair(accepted, "cylinder", "cno", "finetune")) == path
    assert accepted.settings_key() == study.settings_key()


def test_cno_that_r2no_finetuned_is_taken(run, data, tmp_path):
    """Any checkpoint of r2no will do: it brings its network and was not released."""
    (made,) = (run / "sources").glob("cylinder-fno-finetune-*/checkpoint.safetensors")
    path = tmp_path / "weights" / "cylinder" / "cno" / "finetune.safetensors"
    path.parent.mkdir(parents=True)
    shutil.copy(made, path)
    given = {"preset": "mini", "data": data, "checkpoints": tmp_path / "weights"}
    assert released(Pair(BenchConfig.of(**given), "cylinder", "cno", "finetune")) == path


def test_paper_preset_is_the_published_setting():
    with pytest.raises(ConfigError, match="needs the benchmark's data"):
        BenchConfig.of(preset="paper")
    with pytest.raises(ConfigError, match="Did you mean 'fno'"):
        BenchConfig.of(preset="mini", backbones=("fnoo",))
    paper = BenchConfig.of(preset="paper", data=Path("data"))
    settings = paper.adapt()
    repair, train, cells = settings.repair, settings.repair.train, settings.ensemble
    assert (repair.width, repair.steps, repair.step_size, train.epochs) == (32, 12, 0.2, 12)
    assert (cells.cells, cells.radial, cells.angular) == ("published", 128, 16)
    assert cells.ridge_grid == (1e-8, 1e-6, 1e-4, 1e-2, 1e-1, 1.0)
    assert (settings.seed, settings.members) == (42, 3)
    assert len(paper.units()) == 30
    assert sum(len(paper.sources_of(backbone)) for _, backbone in paper.units()) == 40
