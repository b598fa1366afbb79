"""Blocks of windows that are held out."""

import pytest
import torch

from r2no.ensemble.holdout import blocks, halves, outer_folds
from r2no.errors import EmptySplitError


def origins(*trajectories):
    rows = [(number, start) for number, starts in enumerate(trajectories) for start in starts]
    return torch.tensor(rows)


def test_trajectories_stay_whole_and_halves_are_balanced():
    plan = halves(origins(range(9), range(5), range(5), range(8)), horizon=10)
    assert plan.folds == (((0,), (1,)), ((1,), (0,)))
    found = plan.group.split([9, 5, 5, 8])
    assert all(len(part.unique()) == 1 for part in found)
    assert abs(int((plan.group == 0).sum()) - int((plan.group == 1).sum())) <= 9


@pytest.mark.parametrize("order", ["in time", "shuffled"])
def test_one_trajectory_is_cut_in_time_with_a_gap_of_one_horizon(order):
    starts = torch.arange(56)
    if order == "shuffled":
        starts = starts[torch.randperm(56, generator=torch.Generator().manual_seed(0))]
    plan = halves(torch.stack([torch.zeros(56).long(), starts], 1), horizon=10)
    first, last = starts[plan.group == 0], starts[plan.group == 2]
    assert len(first) in (18, 19)
    assert abs(len(first) - len(last)) <= 1
    # targets of the first half end `horizon` frames after its last start (plus the history);
    # those of the second begin one further horizon later
    assert int(last.min()) - int(first.max()) == 2 * 10
    assert plan.folds == (((0,), (2,)), ((2,), (0,)))


def test_short_recording_shrinks_the_gap_but_never_overlaps_targets():
    plan = halves(origins(range(15)), horizon=10)
    first, last = (torch.arange(15)[plan.group == number] for number in (0, 2))
    assert len(first) >= 1
    assert len(last) >= 1
    assert int(last.min()) - int(first.max()) >= 10


def sides(plan, of_window):
    """For each fold, what ``of_window`` says of the windows fitted on and of those scored."""
    for fit, score in plan.folds:
        assert fit
        assert score
        assert not set(fit) & set(score)
        yield tuple(of_window[torch.isin(plan.group, torch.tensor(part))] for part in (fit, score))


def test_a_few_short_recordings_are_held_out_whole():
    windows = origins(range(9), range(9), range(9))
    for fit, score in sides(blocks(windows, horizon=6), windows[:, 0]):
        assert not set(fit.tolist()) & set(score.tolist())


@pytest.mark.parametrize("number", [4, 7, 12, 30])
def test_blocks_are_whole_trajectories_each_judged_once(number):
    windows = origins(*(range(5 + n % 3) for n in range(number)))
    plan = blocks(windows, horizon=6)
    assert int(plan.group.max()) + 1 == min(number, 12)
    for name in range(number):
        assert len(plan.group[windows[:, 0] == name].unique()) == 1
    assert sorted(block for _, score in plan.folds for block in score) == list(
        range(min(number, 12))
    )
    for fit, score in sides(plan, windows[:, 0]):
        assert sorted({*fit.tolist(), *score.tolist()}) == list(range(number))
        assert not set(fit.tolist()) & set(score.tolist())
    counts = plan.group.bincount()
    assert int(counts.max() - counts.min()) <= 7  # never by more than one trajectory


@pytest.mark.parametrize("most", [3, 5, 12])
def test_there_are_never_more_blocks_than_asked_for(most):
    many = origins(*(range(4) for _ in range(20)))
    assert int(blocks(many, horizon=3, most=most).group.max()) + 1 == most
    one = origins(range(500))
    scored = {block for _, score in blocks(one, horizon=3, most=most).folds for block in score}
    assert len(scored) <= max(most, 8)  # two halves of four, where five blocks are too many


@pytest.mark.parametrize("recordings", [1, 2, 3])
@pytest.mark.parametrize("length", [60, 101, 400])
def test_no_target_of_a_scored_block_lies_within_a_horizon_of_a_fitted_one(recordings, length):
    horizon = 6
    windows = origins(*(range(length + 7 * n) for n in range(recordings)))
    plan = blocks(windows, horizon=horizon)
    scored = torch.zeros(len(windows), dtype=torch.long)
    for fit, score in sides(plan, torch.arange(len(windows))):
        scored[score] += 1
        for name in range(recordings):
            near, far = (part[windows[part, 0] == name] for part in (fit, score))
            gap = (windows[near, 1][:, None] - windows[far, 1]).abs()
            # targets end `horizon` frames after they begin, and the next begin one horizon later
            assert gap.numel() == 0 or int(gap.min()) >= 2 * horizon
    assert int(scored.max()) == 1  # nothing judges twice
    assert int((scored == 1).sum()) >= 0.5 * len(windows)


@pytest.mark.parametrize(("length", "folds"), [(13, 2), (20, 2), (25, 6), (40, 6), (59, 6)])
def test_short_recording_gives_parts_whose_targets_do_not_overlap(length, folds):
    windows = origins(range(length))
    plan = blocks(windows, horizon=6)
    assert len(plan.folds) == folds
    judged = [block for _, score in plan.folds for block in score]
    assert len(judged) == len(set(judged))
    for fit, score in sides(plan, windows[:, 1]):
        assert int((fit[:, None] - score).abs().min()) >= 6


@pytest.mark.parametrize("length", [13, 24, 33, 48, 59])
@pytest.mark.parametrize("order", ["in time", "shuffled"])
def test_outer_folds_score_beyond_all_that_they_fit_on(length, order):
    windows = origins(range(length))
    if order == "shuffled":
        windows = windows[torch.randperm(length, generator=torch.Generator().manual_seed(0))]
    plan = blocks(windows, horizon=6)
    found = outer_folds(plan, windows, horizon=6)
    assert {0, len(plan.folds) - 1} <= set(found)
    for number, (fit, score) in enumerate(sides(plan, windows[:, 1])):
        between = fit.min() < score.min() and score.max() < fit.max()
        assert bool(between) == (number not in found)


@pytest.mark.parametrize("length", [60, 90, 120, 200])
def test_long_recordings_have_no_outer_folds(length):
    windows = origins(range(length))
    assert outer_folds(blocks(windows, horizon=6), windows, horizon=6) == ()


@pytest.mark.parametrize("recordings", [2, 3, 4, 9])
def test_several_recordings_have_no_outer_folds(recordings):
    windows = origins(*(range(60) for _ in range(recordings)))
    assert outer_folds(blocks(windows, horizon=6), windows, horizon=6) == ()


def test_blocks_do_not_depend_on_the_order_of_windows():
    windows = origins(range(90), range(70))
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    plan, shuffled = blocks(windows, horizon=4), blocks(windows[order], horizon=4)
    assert shuffled.folds == plan.folds
    assert torch.equal(shuffled.group, plan.group[order])


def test_too_short_recording_is_named():
    with pytest.raises(EmptySplitError, match="fixed `ridge`"):
        halves(origins(range(8)), horizon=10)
    with pytest.raises(EmptySplitError):
        halves(torch.zeros(0, 2).long(), horizon=1)
    with pytest.raises(EmptySplitError):
        blocks(torch.zeros(0, 2).long(), horizon=1)
    with pytest.raises(EmptySplitError, match="fixed `ridge`"):
        blocks(origins(range(8)), horizon=10)
