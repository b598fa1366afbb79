"""Whose recordings two splits hold, by arrays and by values."""

import numpy as np
import pytest
import torch
import xarray as xr

import r2no
from r2no.data import ArrayWindows
from r2no.data.audit import apart, going_on


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
def test_stretches_of_a_recording_are_known_by_their_array(kind):
    def known(*stretches):
        return apart(*(ArrayWindows([one], 4, 4) for one in stretches))

    whole, other = kind((40, 4, 6, 3)), kind((40, 4, 6, 3))
    assert not known(whole[:20, ..., :2], whole[10:][10:][..., :2])
    assert known(whole, other)
    bare = kind((40, 4, 6))
    assert not known(bare[:20, ..., None], bare[..., None][20:])
    several = kind((2, 40, 4, 6, 3))  # two recordings in one array
    assert known(several[0], several[1])
    assert known(several[0][:20], several[1][20:])
    assert not known(several[1][:20], several[1][20:])


@pytest.mark.parametrize("by", ["time", "trajectory"])
def test_splits_of_a_file_are_apart_by_trajectory_only(by, tmp_path):
    values = np.zeros((3, 60, 4, 6), np.float32)
    xr.Dataset({"u": (("trajectory", "time", "y", "x"), values)}).to_netcdf(tmp_path / "u.nc")
    splits = r2no.data.open(tmp_path / "u.nc").split(4, 4, by=by)
    assert apart(splits.train, splits.fit) is (by == "trajectory")


def drifting(seed, frames=120, *, gaps=False):
    """Two waves of random phases and a channel of another size on a large constant, with noise."""
    rng = np.random.default_rng(seed)
    x, time = np.arange(24) / 24, np.arange(frames)[:, None]
    phases = 2 * np.pi * rng.random(2)
    wave = np.sin(2 * np.pi * (x - 0.02 * time) + phases[0])
    wave = wave + 0.5 * np.sin(4 * np.pi * x - 0.08 * time + phases[1])
    field = np.stack([wave, 1e5 + 300 * np.roll(wave, 5, -1)], -1)[:, None].repeat(6, 1)
    field += 0.1 * rng.normal(size=field.shape) * [1, 300]
    if gaps:
        field[rng.random(field.shape) < 0.2] = np.nan
    return field


HALVES = (slice(60), slice(60, None))


def of(*arrays):
    gaps = any(np.isnan(array).any() for array in arrays)
    return ArrayWindows([array.copy() for array in arrays], 5, 5, mask="nan" if gaps else None)


@pytest.mark.parametrize("gaps", [False, True])
def test_copies_of_stretches_are_known_by_going_on(gaps):
    whole = [drifting(seed, gaps=gaps) for seed in range(3)]
    early = of(*(one[:60] for one in whole))
    late = of(*(one[60:].astype(np.float32) for one in whole))
    assert going_on(early, late)
    assert not apart(early, late)
    assert not going_on(late, early)
    slices = [ArrayWindows([one[part] for one in whole], 5, 5, mask="nan") for part in HALVES]
    assert not going_on(*slices)  # these are known without a look at their values
    assert not apart(*slices)


@pytest.mark.parametrize("gaps", [False, True])
def test_recordings_that_do_not_go_on_are_apart(gaps):
    first = of(*(drifting(seed, gaps=gaps) for seed in range(3)))
    assert apart(first, of(*(drifting(seed, gaps=gaps) for seed in range(3, 6))))
    half = [drifting(0)[60:], drifting(9)]  # one goes on, the other is a recording of its own
    assert apart(of(drifting(0)[:60], drifting(8)), of(*half))


def test_recordings_of_another_size_are_apart_though_they_go_on_in_phase():
    one = drifting(0)
    assert apart(of(one[:60]), of(3 * one[60:]))


def test_recordings_that_nothing_tells_apart_are_apart():
    still = np.ones((20, 6, 8, 1))
    assert apart(of(still), of(still))
    noise = np.random.default_rng(0).normal(size=(40, 2, 30, 6, 8, 1))
    told = [apart(of(one), of(other)) for one, other in noise]
    assert sum(told) >= 36  # chance makes one of a hundred look alike, or a few
    other_grid = drifting(0)[60:, :, ::2]
    assert apart(of(drifting(0)[:60]), of(other_grid))
