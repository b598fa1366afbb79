import pytest
import torch

from r2no.data import halves
from r2no.data.splits import blocks
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


def test_a_few_short_recordings_are_held_out_whole():
    plan = blocks(origins(range(9), range(9), range(9)), horizon=6)
    windows = origins(range(9), range(9), range(9))[:, 0]
    for fit, score in plan.folds:
        sides = [
            set(windows[torch.isin(plan.group, torch.tensor(part))].tolist())
            for part in (fit, score)
        ]
        assert not sides[0] & sides[1]


def test_too_short_recording_is_named():
    with pytest.raises(EmptySplitError, match="fixed `ridge`"):
        halves(origins(range(8)), horizon=10)
    with pytest.raises(EmptySplitError):
        halves(torch.zeros(0, 2).long(), horizon=1)
