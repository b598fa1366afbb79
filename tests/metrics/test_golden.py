"""The benchmark's own numbers, computed by it in float32."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from r2no import metrics
from r2no.errors import GridMismatchError

GOLDEN = Path(__file__).parents[1] / "golden"
STORED = json.loads((GOLDEN / "metrics.json").read_text())
NAMES = {"f_error": "frmse"} | {
    f"{relative}{band}_f_error": f"{relative}frmse_{band}"
    for relative in ("", "rel_")
    for band in ("low", "mid", "high")
}


@pytest.mark.parametrize("case", STORED["cases"])
def test_scores_agree_with_the_benchmark(case: str) -> None:
    shape, channels, batch = case.split("|")
    metric_batch = None if batch == "batchNone" else int(batch.removeprefix("batch"))
    with np.load(GOLDEN / "metrics.npz") as arrays:
        prediction, target = (torch.from_numpy(arrays[f"{shape}/{n}"]) for n in ("pred", "target"))
    scores = metrics.evaluate(
        prediction, target, measured=int(channels[1:]), metric_batch=metric_batch
    )
    for name in STORED["order"]:
        expected = float(STORED["cases"][case][name])
        assert scores[NAMES.get(name, name)] == pytest.approx(
            expected, rel=1e-5, abs=0, nan_ok=True
        ), name


def _probe_arguments(system: str) -> tuple[torch.Tensor, torch.Tensor, dict]:
    case = STORED["probe_diagnostic"][system]
    generator, shape = np.random.default_rng(2000), (2, 3, *case["grid"], 3)
    prediction = generator.standard_normal(shape, dtype=np.float32)[..., :2]
    target = generator.standard_normal(shape, dtype=np.float32)
    geometry = {
        "diameter": case["d"],
        "center": (case["center_x"], case["center_y"]),
        "stride": case["sub_s_real"],
    }
    return torch.from_numpy(prediction), torch.from_numpy(target), geometry


@pytest.mark.parametrize("compat", [None, "benchmark"])
@pytest.mark.parametrize("system", ["cylinder", "controlled_cylinder"])
def test_probes_agree_with_the_benchmark(system: str, compat: str | None) -> None:
    prediction, target, geometry = _probe_arguments(system)
    stations = metrics.probe_error(prediction, target, **geometry, compat=compat)
    expected = STORED["probe_diagnostic"][system]["per_station_error"]
    assert stations.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("system", "column"), [("fsi", 69), ("foil", 139)])
def test_probes_leave_the_grid_only_with_the_published_range_test(system: str, column: int) -> None:
    prediction, target, geometry = _probe_arguments(system)
    assert f"index {column} " in STORED["probe_diagnostic"][system]["per_station_error"]
    with pytest.raises(GridMismatchError, match=str(column)):
        metrics.probe_error(prediction, target, **geometry, compat="benchmark")
    stations = metrics.probe_error(prediction, target, **geometry)
    assert all(math.isfinite(value) for value in stations.tolist())
