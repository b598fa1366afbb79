"""The whole predictor as one program, run where r2no cannot be imported."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import adapting
from tests.support.adapting import FIT, HISTORY, TRAIN, Source, factory_operator, own_operator
from tests.support.waves import travelling_wave
from torch import nn

import r2no
from r2no import operators, storage
from r2no.adaptation import AdaptedModel
from r2no.data import ArrayWindows
from r2no.errors import ConfigError

# Two steps: the program holds each of them, and tracing takes a second for each.
SETTINGS = adapting.SETTINGS.model_copy(
    update={"repair": adapting.SETTINGS.repair.model_copy(update={"steps": 2})}
)

# Only PyTorch: -I ignores PYTHONPATH, and the import hook refuses r2no even where it is installed.
ELSEWHERE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("r2no", "neuralop"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
try:
    import r2no
except ImportError:
    pass
else:
    sys.exit("r2no could be imported")
import torch
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
program, given, answer = sys.argv[1:]
inputs = load_file(given)
module = torch.export.load(program).module()
with torch.no_grad():
    found = module(*[inputs[name] for name in sorted(inputs)])
save_file({"found": found.contiguous()}, answer)
assert not any(name.split(".")[0] == "r2no" for name in sys.modules)
"""


def run_elsewhere(program: Path, *inputs: torch.Tensor) -> torch.Tensor:
    given, answer = program.with_suffix(".in"), program.with_suffix(".out")
    storage.save_tensors(given, {str(n): value for n, value in enumerate(inputs)})
    command = [sys.executable, "-I", "-W", "ignore", "-c", ELSEWHERE, program, given, answer]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return storage.load_tensors(answer)[0]["found"]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


SOURCES: dict[str, Any] = {
    "module": Source,
    "fno": own_operator,
    "rolled": lambda: operators.wrap(
        operators.from_python("tests.support.networks:FrameMix", channels_in=4, channels_out=2),
        "B (T C) H W",
        FIT.fields,
        one_step=True,
        frames=2,
    ),
}
SEVERAL = torch.cat([HISTORY, 2 * HISTORY, HISTORY[:1]])


@pytest.fixture(scope="module", params=SOURCES)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AdaptedModel, Path]:
    """A model and the file of its program; that of a module has two members."""
    members = 2 if request.param == "module" else 1
    model = r2no.adapt(SOURCES[request.param](), TRAIN, FIT, members=members, settings=SETTINGS)
    return model, model.export(tmp_path_factory.mktemp("export") / "model.pt2")


def test_exported_program_agrees_for_any_batch(program: tuple[AdaptedModel, Path]) -> None:
    model, path = program
    found = torch.export.load(path).module()
    for history in (HISTORY[:1], SEVERAL):
        close(found(history), model.predict(history))


@pytest.mark.parametrize("program", ["fno"], indirect=True)
def test_exported_program_agrees_without_r2no(program: tuple[AdaptedModel, Path]) -> None:
    model, path = program
    close(run_elsewhere(path, SEVERAL), model.predict(SEVERAL))


def test_program_without_its_source_takes_the_forecast(tmp_path: Path) -> None:
    source = factory_operator()
    model = r2no.adapt(source, TRAIN, FIT, members=1, settings=SETTINGS)
    path = model.export(tmp_path / "repair.pt2", source_input=True)
    found = run_elsewhere(path, HISTORY, source(HISTORY).detach())
    close(found, model.predict(HISTORY))


class Stubborn(nn.Module):
    """Its Python code looks at values, so it cannot be traced."""

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        last = history[:, -1:].expand(-1, 4, -1, -1, -1)
        return last * (0.9 if float(history.mean()) > -5 else 0.8)


def test_source_that_cannot_be_traced_is_named(tmp_path: Path) -> None:
    model = r2no.adapt(Stubborn(), TRAIN, FIT, members=1, settings=SETTINGS)
    with pytest.raises(ConfigError, match="source_input=True"):
        model.export(tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []
    path = model.export(tmp_path / "model.pt2", source_input=True)
    found = torch.export.load(path).module()(HISTORY, model.source(HISTORY))
    close(found, model.predict(HISTORY))


class Single(Source):
    """Its code fixes the batch size while it is traced."""

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        return super().forward(history) + torch.zeros(int(history.shape[0]), 1, 1, 1, 1)


def test_source_that_fixes_the_batch_size_is_exported_for_one_window(tmp_path: Path) -> None:
    model = r2no.adapt(Single(), TRAIN, FIT, members=1, settings=SETTINGS)
    with pytest.warns(UserWarning, match="one window at a time"):
        path = model.export(tmp_path / "model.pt2")
    close(torch.export.load(path).module()(HISTORY[1:]), model.predict(HISTORY[1:]))


def test_export_of_an_odd_grid_and_published_cells(tmp_path: Path) -> None:
    def split(seeds: range) -> ArrayWindows:
        waves = [travelling_wave(seed, grid=(7, 9)) for seed in seeds]
        return ArrayWindows(waves, 4, 4, stride=3, measured=(0,))

    ensemble = SETTINGS.ensemble.model_copy(update={"cells": "published"})
    settings = SETTINGS.model_copy(update={"ensemble": ensemble})
    model = r2no.adapt(
        Source(), split(range(2)), split(range(10, 13)), members=1, settings=settings
    )
    path = model.export(tmp_path / "model.pt2")
    history = torch.stack([split(range(20, 21))[number].history for number in (0, 4, 5)])
    close(torch.export.load(path).module()(history), model.predict(history))
    with pytest.raises(ConfigError, match=r"\.pt2"):
        model.export(tmp_path / "model.onnx")
