"""The scoring pass: what observers see, and that it scores as the metrics do."""

import numpy as np
import pytest
import torch

from r2no import metrics
from r2no.data import ArrayWindows
from r2no.data.window import Chosen, batches
from r2no.errors import EmptySplitError
from r2no.scoring import Metrics, Observer, Rmse, Sample, score
from r2no.training import Persistence


@pytest.fixture
def windows(rng):
    frames = torch.randn(9, 8, 8, 2, generator=rng).numpy()
    frames[3, 2:4] = np.nan
    return ArrayWindows([frames], 2, 2, measured=(0,), mask="nan")


class Told(Observer):
    """Writes down what it is told."""

    def __init__(self):
        self.lines = []

    def begin(self, numbers, window):
        self.lines.append(("begin", len(window.target), numbers))

    def iterate(self, member, depth, field, spectrum):
        self.lines.append(("iterate", member, depth))

    def forecast(self, name, forecast):
        assert not torch.is_grad_enabled()
        self.lines.append(("forecast", name))

    def end(self):
        self.lines.append(("end",))


def test_observers_see_every_batch_once_in_order(windows):
    told = Told()

    def forecasts(numbers, window, watch):
        for depth in range(2):
            watch.iterate(0, depth, window.target)
        yield "a", window.target
        yield "b", window.target

    seconds = score(forecasts, windows, [told], batch_size=4)
    inner = [("iterate", 0, 0), ("iterate", 0, 1), ("forecast", "a"), ("forecast", "b"), ("end",)]
    first, second = ("begin", 4, range(4)), ("begin", 2, range(4, 6))
    assert told.lines == [first, *inner, second, *inner]
    assert min(seconds.values()) >= 0
    assert seconds["data"] > 0


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_scores_are_those_of_the_metrics_whatever_the_batch(windows, batch_size):
    still = Persistence(2, 2)
    found, rmse = Metrics((0,)), Rmse((0,))
    score({"still": still}, windows, [found, rmse], batch_size=batch_size)
    ((_, whole),) = batches(windows, 100)
    assert whole.mask is not None
    expected = metrics.evaluate(still(whole.history), whole.target, measured=(0,), mask=whole.mask)
    assert found.compute()["still"] == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert rmse.compute()["still"] == pytest.approx(expected["rmse"], rel=1e-6)


def test_sample_keeps_one_window_with_its_gaps(windows):
    sample = Sample(["still"], 2)
    score({"still": Persistence(2, 2), "other": Persistence(2, 2)}, windows, [sample], batch_size=4)
    assert set(sample.fields) == {"target", "still"}
    window = windows[2]
    assert sample.fields["target"].isnan().equal(~window.mask)
    assert sample.fields["still"].equal(Persistence(2, 2)(window.history[None])[0])


def test_chosen_windows_are_scored_alone(windows):
    chosen = Chosen(windows, [1, 4])
    assert chosen.origins.equal(windows.origins[[1, 4]])
    assert chosen.fingerprint != Chosen(windows, [4, 1]).fingerprint
    told = Told()
    score({"still": Persistence(2, 2)}, chosen, [told], batch_size=8)
    assert told.lines[0] == ("begin", 2, range(2))
    with pytest.raises(EmptySplitError):
        score({}, Chosen(windows, []), [told], batch_size=8)
