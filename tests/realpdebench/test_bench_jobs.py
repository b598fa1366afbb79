"""A study as jobs: their order, what they leave, and the bits of a run."""

import json
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from r2no.cli.main import app
from r2no.errors import ConfigError, DataError
from r2no.locks import sole_writer
from r2no.realpdebench.study.cluster import ClusterConfig, Work, statuses, stored_configs
from r2no.realpdebench.study.config import BenchConfig
from r2no.realpdebench.study.run import jobs_of, note_path, noted, run_bench, run_job
from r2no.realpdebench.study.tables import study_sheet

STUDY = {
    "preset": "mini",
    "systems": ("cylinder",),
    "backbones": ("fno",),
    "sources": ("pretrained",),
    "members": 2,
}
OPTIONS = [
    "--preset",
    "mini",
    "--system",
    "cylinder",
    "--backbone",
    "fno",
    "--source",
    "pretrained",
    "--members",
    "2",
]


def test_jobs_come_after_those_they_need(tmp_path: Path) -> None:
    jobs = jobs_of(BenchConfig.of(**{**STUDY, "sources": ("finetune", "pretrained")}, out=tmp_path))
    place = {job.name: number for number, job in enumerate(jobs)}
    assert all(place[name] < place[job.name] for job in jobs for name in job.after)
    after = {job.name: job.after for job in jobs}
    assert after["cylinder-fno-finetune.source"] == ("cylinder-fno-pretrained.source",)
    assert after["cylinder-fno-finetune.h0"] == ("cylinder-fno-finetune.source",)
    members = tuple(f"cylinder-fno-finetune.member-{number}" for number in range(2))
    assert after["cylinder-fno-finetune.pair"] == members
    assert after["table"] == ("cylinder-fno-finetune.pair", "cylinder-fno-pretrained.pair")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> BenchConfig:
    """A study done job by job; the first of them had to wait for another run."""
    config = BenchConfig.of(**STUDY, out=tmp_path_factory.mktemp("jobs") / "out")
    first, *others = jobs_of(config)
    with sole_writer(note_path(config, first)):
        waiting = threading.Thread(target=run_job, args=(config, first))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join()
    for job in others:
        run_job(config, job)
    return config


def test_jobs_end_in_the_bits_of_a_run(done: BenchConfig, tmp_path: Path) -> None:
    whole = done.model_copy(update={"out": tmp_path, "data": done.root})
    assert [outcome.state for outcome in run_bench(whole)] == ["done"]
    table = (done.out / "table.md").read_bytes()
    assert table == study_sheet("main", tmp_path).render("md").encode()
    files = [p for p in tmp_path.glob("adapt/*/**/*") if p.suffix in (".npy", ".safetensors")]
    assert len(files) > 5
    for path in files:
        assert path.read_bytes() == (done.out / path.relative_to(tmp_path)).read_bytes(), path


def test_a_failed_job_says_why(tmp_path: Path) -> None:
    config = BenchConfig.of(**STUDY, out=tmp_path, data=tmp_path / "nowhere")
    job = jobs_of(config)[0]
    with pytest.raises(DataError, match="nowhere"):
        run_job(config, job)
    assert noted(config, job)["state"] == "failed"
    (found, *_) = statuses(config)
    assert found.state == "failed"
    assert "nowhere" in found.note


def test_status_and_plan_know_what_is_done(done: BenchConfig) -> None:
    assert {one.state for one in statuses(done)} == {"done"}
    other = done.model_copy(update={"members": 3})
    assert {one.state for one in statuses(other)} == {"not begun"}
    with pytest.raises(ConfigError, match="No study was submitted"):
        stored_configs(done.out)
    said = CliRunner().invoke(app, ["bench", "plan", *OPTIONS, "--json", "--out", str(done.out)])
    (plan,) = json.loads(said.stdout)
    assert plan["gpu_hours"] == plan["disk_gb"] == 0
    hours = {job["stage"]: job["gpu_hours"] for job in plan["jobs"]}
    assert all(hours[stage] > 0 for stage in ("source", "h0", "member", "pair"))


def test_stages_may_ask_for_other_resources() -> None:
    cluster = ClusterConfig(gpus=2, stages={"table": {"gpus": 0}})
    assert (cluster.of("member").gpus, cluster.of("table").gpus) == (2, 0)
    with pytest.raises(ConfigError, match="gpus"):
        ClusterConfig(gpu=2)


def test_submitting_here_runs_what_is_missing(done: BenchConfig) -> None:
    note_path(done, jobs_of(done)[-1]).unlink()
    (done.out / "table.md").unlink()
    command = ["bench", "submit", "--executor", "local", *OPTIONS, "--out", str(done.out)]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert "Ran 1 jobs" in said.stdout
    assert (done.out / "table.md").is_file()
    assert [config.members for config in stored_configs(done.out)] == [2]


def test_a_job_is_queued_again_as_itself() -> None:
    work = Work({}, "table", 1)
    assert work.checkpoint().function == work
