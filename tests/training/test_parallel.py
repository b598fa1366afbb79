"""Trainings side by side: the same results as one after the other, and a clean end on failure."""

import threading
import time

import pytest
import torch

from r2no.adaptation import AdaptSettings, RepairSettings, adapt
from r2no.progress import SILENT, Reporter
from r2no.training import TrainSettings, side_by_side


def test_members_trained_side_by_side_equal_members_trained_in_turn(windows, tmp_path):
    train = TrainSettings(epochs=None, updates=6, batch_size=2, validations=2)
    settings = AdaptSettings(
        members=3, repair=RepairSettings(width=4, depth=2, steps=3, train=train)
    )
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        models = [
            adapt(
                lambda history: history[..., :2],
                windows["train"],
                windows["fit"],
                settings=settings.model_copy(update={"jobs": jobs}),
                folder=tmp_path / str(jobs),
            )
            for jobs in (1, 3)
        ]
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*(model.loops.modules for model in models), strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
    assert torch.equal(models[0].ensemble.weights, models[1].ensemble.weights)
    assert torch.equal(random, torch.get_rng_state())


def test_a_failure_stops_the_others_and_is_the_error_raised():
    begun, stopped = threading.Event(), threading.Event()

    def long(reporter: Reporter) -> None:
        with reporter.step("long", 1) as step:
            begun.set()
            try:
                while True:  # until it is stopped
                    time.sleep(0.001)
                    step.advance(0)
            except BaseException:
                stopped.set()
                raise

    def failing(reporter: Reporter) -> None:
        begun.wait()
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        side_by_side([long, failing, long], jobs=2, reporter=SILENT)
    assert stopped.is_set()


def test_the_results_come_in_order():
    tasks = [lambda reporter, n=n: (time.sleep(0.01 * (3 - n)), n)[1] for n in range(3)]
    assert side_by_side(tasks, jobs=3, reporter=SILENT) == [0, 1, 2]
