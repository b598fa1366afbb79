"""The whole chain on a pretend accelerator, with CUDA's rules and with those of MPS."""

import copy
import dataclasses
import itertools
import json
import threading

import numpy as np
import pytest
import torch
from tests.support import pretend
from tests.support.adapting import SETTINGS as LARGER

import r2no
from r2no import devices
from r2no.adaptation import readouts, score_readouts
from r2no.checks import changed
from r2no.data.window import Chosen, Placed, batches
from r2no.ensemble import GramAccumulator
from r2no.errors import DataError, DeviceError, DeviceMemoryError
from r2no.repair_loop import inference
from r2no.training import Persistence, TrainSettings, cached_source

SETTINGS = changed(
    LARGER,
    members=1,
    repair=changed(LARGER.repair, steps=2, train=TrainSettings(epochs=4, batch_size=6, lr=2e-2)),
    ensemble=changed(LARGER.ensemble, recall=1),
)
#: Roll-outs of such modules take other steps on the CPU, so iterates agree to rounding, of which
#: weights without a penalty, 300 on these data, would make more than 1e-6.
WIDE = changed(
    SETTINGS,
    repair=changed(SETTINGS.repair, width=16),
    ensemble=changed(SETTINGS.ensemble, cells="published", ridge=1e-3),
)
RULES = pytest.mark.parametrize("wide", [True, False], ids=["cuda", "mps"])


class Network(torch.nn.Module):
    """A source with weights: the last frame, mixed."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(2, 2)
        with torch.no_grad():
            self.mix.weight.copy_(torch.tensor([[0.9, 0.1], [-0.1, 0.8]]))
            self.mix.bias.fill_(0.01)

    def forward(self, history):
        return self.mix(history[:, -1:, ..., :2]).expand(-1, 4, -1, -1, -1).contiguous()


@pytest.fixture(scope="module")
def on_cpu(splits):
    settings = changed(SETTINGS, device="cpu")
    return r2no.adapt(Network(), splits["train"], splits["fit"], settings=settings)


def close(found, expected):
    scale = expected.abs().max()
    torch.testing.assert_close(found, expected, atol=float(1e-6 * scale), rtol=1e-6)


@pytest.fixture(scope="module")
def prepared_on_cpu(splits):
    """As ``on_cpu``, of a width whose roll-outs on the CPU take other steps than on a device."""
    assert WIDE.repair.width >= inference._LEAST_WIDTH
    settings = changed(WIDE, device="cpu")
    return r2no.adapt(Network(), splits["train"], splits["fit"], settings=settings)


@RULES
@pytest.mark.parametrize(
    ("settings", "made"),
    [(SETTINGS, "on_cpu"), (WIDE, "prepared_on_cpu")],
    ids=["plain", "prepared"],
)
def test_the_whole_chain_on_a_device_equals_the_cpu(
    splits, settings, made, wide, tmp_path, request
):
    history, on_cpu = splits["test"][0].history[None], request.getfixturevalue(made)
    with pretend.accelerator(wide=wide):
        model = r2no.adapt(
            Network(), splits["train"], splits["fit"], settings=changed(settings, device="pretend")
        )
        assert model.device == pretend.DEVICE
        assert {p.device for m in model.loops.modules for p in m.parameters()} == {pretend.DEVICE}
        assert model.provenance["device"] == "pretend:0"
        for ours, theirs in zip(model.loops.modules, on_cpu.loops.modules, strict=True):
            for name, value in ours.state_dict().items():
                assert torch.equal(value.cpu(), theirs.state_dict()[name]), name
        close(model.predict(history), on_cpu.predict(history))
        ours, theirs = (m.evaluate(splits["test"]) for m in (model, on_cpu))
        assert ours["rmse"] == pytest.approx(theirs["rmse"], rel=1e-6)
        if settings is SETTINGS:
            close(model.ensemble.weights, on_cpu.ensemble.weights)
            assert ours == pytest.approx(theirs, rel=1e-6, nan_ok=True)
        path = model.save(tmp_path / "model.r2no", include_source=False)
        loaded = r2no.load(path, Network(), device="pretend")
        close(loaded.predict(history), on_cpu.predict(history))
    elsewhere = r2no.load(path, Network())
    assert elsewhere.device == devices.CPU
    close(elsewhere.predict(history), on_cpu.predict(history))


def test_a_fit_brings_back_once_per_batch_and_waits_once(splits, monkeypatch):
    counted, begin = [], GramAccumulator.begin

    def counting(*arguments):
        counted.append((seen.back, seen.waits))
        return begin(*arguments)

    settings = changed(SETTINGS, device="pretend", batch_size=4)
    with pretend.accelerator() as seen:
        monkeypatch.setattr(GramAccumulator, "begin", counting)
        r2no.adapt(Network(), splits["train"], splits["fit"], settings=settings)
    fit = counted[-(len(splits["fit"]) // 4) :]  # the last pass is that over the fit split
    assert len(fit) == 11
    for before, after in itertools.pairwise(fit):
        assert after[0] - before[0] <= 1
        assert after[1] - before[1] <= 1


def test_batches_are_read_ahead_in_order_and_errors_come_through(splits):
    class Watched(Chosen):
        def __getitem__(self, index):
            seen.append(threading.current_thread().name.split("_")[0])
            if index == self.broken:
                raise DataError("damaged")
            return super().__getitem__(index)

    seen: list[str] = []
    windows = Watched(splits["fit"], range(10))
    windows.broken = None
    expected = list(batches(windows, 3))
    assert set(seen) == {"MainThread"}
    with pretend.accelerator():
        found = list(batches(Placed(windows, pretend.DEVICE), 3))
        assert set(seen[10:]) == {"r2no-reader"}
        for (ours, window), (theirs, other) in zip(found, expected, strict=True):
            assert ours == theirs
            assert torch.equal(window.history.cpu(), other.history)
            assert torch.equal(window.target.cpu(), other.target)
        windows.broken = 7
        with pytest.raises(DataError, match="damaged"):
            list(batches(Placed(windows, pretend.DEVICE), 3))
    assert not any("r2no-reader" in thread.name for thread in threading.enumerate())


MADE = pytest.mark.parametrize("made", ["on_cpu", "prepared_on_cpu"])


@RULES
@MADE
def test_forecasts_come_back_where_the_history_was(made, splits, wide, request):
    on_cpu, history = request.getfixturevalue(made), splits["test"][0].history
    model = copy.deepcopy(on_cpu)
    expected = on_cpu.predict(history)
    with pretend.accelerator(wide=wide):
        close(model.predict(history), expected)  # folds its modules on the CPU
        assert model.to("pretend") is model
        for given in (history, history.numpy(), history.to(pretend.DEVICE)):
            found = model.predict(given)
            assert type(found) is type(given)
            if isinstance(found, torch.Tensor):
                assert found.device == given.device
            close(torch.as_tensor(found).cpu(), expected)
        model.to("cpu")
        assert torch.equal(model.predict(history), expected)


def shrink(model):
    for module in model.loops.modules:
        module.load_state_dict({n: 0.5 * v for n, v in module.state_dict().items()})


@MADE
def test_weights_loaded_after_a_move_are_used(made, splits, request, tmp_path):
    on_cpu, history = request.getfixturevalue(made), splits["test"][0].history
    still = copy.deepcopy(on_cpu)
    before = still.predict(history)
    shrink(still)
    expected = still.predict(history)
    assert (expected - before).abs().max() > 1e-3 * before.abs().max()
    model = copy.deepcopy(on_cpu)
    model.predict(history)
    with pretend.accelerator():
        model.to("pretend").predict(history)
        shrink(model)
        close(model.predict(history), expected)
        path = model.save(tmp_path / "model.r2no", include_source=False)
        model.to("cpu")
    for found in (model, r2no.load(path, Network())):
        assert torch.equal(found.predict(history), expected)


@RULES
def test_readouts_are_scored_on_the_device(on_cpu, splits, wide):
    operators = {"persistence": Persistence(4, 2)}
    expected, depths = score_readouts(on_cpu, splits["test"], readouts(on_cpu), operators=operators)
    with pretend.accelerator(wide=wide):
        model = copy.deepcopy(on_cpu).to("pretend")
        found, errors = score_readouts(model, splits["test"], readouts(model), operators=operators)
    assert errors.squared.device == devices.CPU
    close(errors.squared, depths.squared)
    for name, scores in expected.items():
        assert found[name] == pytest.approx(scores, rel=1e-6, nan_ok=True), name


def test_more_fit_data_are_added_on_the_device(on_cpu, splits):
    expected = on_cpu.update(splits["test"])
    with pretend.accelerator():
        model = copy.deepcopy(on_cpu).to("pretend").update(splits["test"])
    close(model.ensemble.weights, expected.ensemble.weights)


def test_an_export_from_the_device_is_a_program_for_the_cpu(on_cpu, splits, tmp_path):
    history = splits["test"][0].history[None]
    with pretend.accelerator():
        model = copy.deepcopy(on_cpu).to("pretend")
        path = model.export(tmp_path / "model.pt2")
        assert model.device == pretend.DEVICE
    found = torch.export.load(path).module()(history)
    torch.testing.assert_close(found, on_cpu.predict(history), atol=1e-5, rtol=1e-5)


def test_a_function_is_asked_on_the_cpu(splits):
    def last(history):
        values = history.numpy()[:, -1:, ..., :2]
        return torch.from_numpy(np.repeat(0.9 * values, 4, axis=1))

    settings = changed(SETTINGS, members=0)
    expected = r2no.adapt(last, splits["train"], splits["fit"], settings=settings)
    with pretend.accelerator():
        on = changed(settings, device="pretend")
        found = r2no.adapt(last, splits["train"], splits["fit"], settings=on)
    close(found.ensemble.weights, expected.ensemble.weights)


def test_auto_takes_the_accelerator_that_is_there_and_says_so(splits):
    assert devices.choose() == devices.CPU
    with pretend.accelerator():
        assert devices.choose() == devices.choose("pretend") == pretend.DEVICE
        assert devices.choose("cpu") == devices.CPU


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "mps", "pretend"])
def test_a_device_that_is_not_there_is_named_with_what_is(splits, name):
    with pytest.raises(DeviceError, match=r"not there. PyTorch .* finds here: cpu"):
        r2no.adapt(Network(), splits["train"], splits["fit"], members=0, device=name)
    with pytest.raises(DeviceError, match=r"must be auto, cpu, cuda.*'gpu'"):
        devices.choose("gpu")


def test_where_it_was_made_is_stored_but_not_decided(on_cpu, tmp_path):
    path = on_cpu.save(tmp_path / "m.r2no", include_source=False)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["provenance"]["device"] == "cpu"
    assert "device" not in manifest["settings"]


@pytest.mark.parametrize(("most", "left"), [("keep", 2), ("drop", 0), (1.5e-4, 1)])
def test_forecasts_of_the_source_are_kept_dropped_or_bounded(splits, tmp_path, most, left):
    settings = changed(SETTINGS, cache=most)  # the splits take 0.10 and 0.14 MB
    r2no.adapt(Network(), splits["train"], splits["fit"], settings=settings, folder=tmp_path)
    sizes = [path.stat().st_size for path in (tmp_path / "source").glob("h0-*.npy")]
    assert len(sizes) == left, sizes


class Hungry(Network):
    """A source that needs more memory for each window than all else does."""

    def forward(self, history):
        wide = history.new_ones(len(history), 3_000).sum(1)
        return super().forward(history) + 0 * wide[:, None, None, None, None]


ROOM = 4 * 3_000 * 2  # bytes: two windows of that source, and any window itself


@pytest.mark.parametrize("stage", ["h0", "predict", "evaluate"])
def test_too_little_memory_names_what_fits_in_every_stage(stage, splits, on_cpu, tmp_path):
    windows = splits["test"]
    with pretend.accelerator():
        model = dataclasses.replace(copy.deepcopy(on_cpu), source=Hungry()).to("pretend")
    work = {
        "h0": lambda: cached_source(model.source, windows, tmp_path, batch_size=4),
        "predict": lambda: model.predict(torch.stack([windows[n].history for n in range(4)])),
        "evaluate": lambda: model.evaluate(windows, batch_size=4),
    }
    remedy = "predict 2 at a time" if stage == "predict" else "set `batch_size` to 2"
    named = pytest.raises(DeviceMemoryError, match=f"batch of 4 .* 2 would fit: {remedy}")
    with pretend.accelerator(memory=ROOM), named:
        work[stage]()
