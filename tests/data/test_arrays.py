import copy
import math
import pickle

import numpy as np
import pytest
import torch
from tests.support.waves import travelling_wave
from torch.utils.data import DataLoader

from r2no import data as r2no_data
from r2no.data.arrays import ArrayWindows
from r2no.data.gaps import _fill_in_time, fill_gaps
from r2no.data.window import Windows, collate
from r2no.errors import (
    ConfigError,
    DataError,
    EmptySplitError,
    GridMismatchError,
    NonFiniteError,
    R2NOError,
    ShapeError,
)


def trajectory(frames: int = 12, grid: tuple[int, ...] = (4, 6), channels: int = 2, seed: int = 0):
    return np.random.default_rng(seed).normal(size=(frames, *grid, channels)).astype(np.float32)


def test_windows_are_slices_of_their_trajectory() -> None:
    arrays = [trajectory(12), trajectory(15, seed=1)]
    windows = ArrayWindows(arrays, 3, 4, stride=2)
    assert isinstance(windows, Windows)
    assert windows.origins.tolist() == [[0, s] for s in (0, 2, 4)] + [
        [1, s] for s in (0, 2, 4, 6, 8)
    ]
    for (number, start), window in zip(windows.origins.tolist(), windows, strict=True):
        whole = torch.from_numpy(arrays[number][start : start + 7])
        assert torch.equal(torch.cat([window.history, window.target]), whole)
        assert window.mask is None


@pytest.mark.parametrize("grid", [(5,), (4, 6), (3, 4, 5)], ids=["1-D", "2-D", "3-D"])
def test_windows_work_on_grids_of_one_to_three_axes(grid: tuple[int, ...]) -> None:
    windows = ArrayWindows([trajectory(grid=grid)], 3, 4)
    assert windows.fields.grid == grid
    assert windows[-1].target.shape == (4, *grid, 2)


def test_tensors_and_arrays_give_the_same_windows() -> None:
    array = trajectory()
    left, right = ArrayWindows([array], 3, 4), ArrayWindows([torch.from_numpy(array)], 3, 4)
    assert torch.equal(left[2].history, right[2].history)


def test_writing_into_a_window_leaves_the_trajectory() -> None:
    array = trajectory()
    before = array.copy()
    ArrayWindows([array], 3, 4)[0].history.zero_()
    ArrayWindows([torch.from_numpy(array)], 3, 4)[0].history.zero_()
    np.testing.assert_array_equal(array, before)


def test_conditioning_is_appended_to_the_history_only() -> None:
    windows = ArrayWindows(
        [trajectory(), trajectory(seed=1)],
        3,
        4,
        conditioning=[(100.0,), (200.0,)],
        conditioning_names=["Re"],
    )
    assert windows.fields.history_channels == ("0", "1", "Re")
    assert (windows[-1].history[..., -1] == 200).all()
    assert windows[0].history.shape[-1] == 3
    assert windows[0].target.shape[-1] == 2


def test_gaps_are_first_filled_in_time_then_by_the_mean_then_by_zero() -> None:
    nan = math.nan
    values = torch.tensor(
        [[1.0, nan, nan, nan], [nan, nan, nan, nan], [3.0, 5.0, nan, nan], [nan, 7.0, nan, nan]]
    )  # time, point
    field = torch.stack([values, torch.full_like(values, nan)], -1)
    filled = _fill_in_time(field, torch.isfinite(field))
    mean = (1 + 3 + 5 + 7) / 4
    expected = torch.tensor(
        [[1, 5, mean, mean], [1, 5, mean, mean], [3, 5, mean, mean], [3, 7, mean, mean]]
    )
    assert torch.equal(filled[..., 0], expected)
    assert torch.equal(filled[..., 1], torch.zeros(4, 4))


def test_single_point_has_no_neighbours_and_keeps_the_value_from_another_time() -> None:
    field = torch.tensor([1.0, math.nan, 3.0, math.nan])[:, None, None, None]
    assert fill_gaps(field, torch.isfinite(field)).flatten().tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("grid", [(9,), (7, 9), (5, 6, 7)], ids=["1-D", "2-D", "3-D"])
def test_isolated_gaps_of_a_linear_field_are_filled_exactly(grid: tuple[int, ...]) -> None:
    """A linear field solves Laplace's equation, whatever it does in time."""
    slopes = torch.arange(1.0, len(grid) + 1, dtype=torch.float64)
    axes = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    plane = sum(slope * axis for slope, axis in zip(slopes, axes, strict=True))
    field = torch.stack([plane, -3 * plane, plane + 100])[..., None]
    valid = torch.ones_like(field, dtype=torch.bool)
    for frame in range(3):  # a gap with all its neighbours, never at an edge
        valid[(frame, *(2 + frame % 2 for _ in grid))] = False
    hidden = torch.where(valid, field, math.nan)
    torch.testing.assert_close(fill_gaps(hidden, valid), field)


def test_scattered_gaps_of_a_travelling_wave_are_filled_better_than_by_waiting() -> None:
    x, t = torch.arange(24) / 24, torch.arange(10)[:, None, None]
    wave = torch.sin(2 * math.pi * (x - 0.1 * t)).expand(10, 16, 24)[..., None]
    valid = torch.rand(wave.shape, generator=torch.Generator().manual_seed(0)) > 0.2
    error = [
        float((rule(wave, valid) - wave).square().mean().sqrt())
        for rule in (fill_gaps, _fill_in_time)
    ]
    assert error[0] < 0.2 * error[1]


@pytest.mark.parametrize("channel_axis", [True, False])
def test_values_under_the_mask_have_no_influence(channel_axis: bool) -> None:
    array, rng = trajectory(), np.random.default_rng(3)
    mask = rng.random(array.shape if channel_axis else array.shape[:-1]) > 0.3
    full = np.broadcast_to(mask if channel_axis else mask[..., None], array.shape)
    clean = ArrayWindows([array], 3, 4, mask=[mask])
    for junk in (math.nan, math.inf, 1e30):
        other = ArrayWindows([np.where(full, array, np.float32(junk))], 3, 4, mask=[mask])
        for left, right in zip(clean, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_nan_mask_equals_the_mask_given_as_arrays() -> None:
    array = trajectory()
    array[np.random.default_rng(3).random(array.shape) > 0.7] = np.nan
    marked = ArrayWindows([array], 3, 4, mask="nan")
    given = ArrayWindows([array], 3, 4, mask=[torch.from_numpy(np.isfinite(array))])
    for left, right in zip(marked, given, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
        assert (left.target[~left.mask] == 0).all()
        assert torch.isfinite(left.history).all()


def test_unmeasured_channel_may_be_missing_altogether() -> None:
    array = trajectory()
    array[..., 1] = np.nan
    window = ArrayWindows([array], 3, 4, measured=[0], mask="nan")[0]
    assert (window.history[..., 1] == 0).all()
    assert not window.mask[..., 1].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_value_is_named_by_trajectory_and_frame(bad: float) -> None:
    array = trajectory(50, seed=1)
    array[37, 0, 0, 1] = bad
    with pytest.raises(NonFiniteError, match=r'Trajectory 1 .* frame 37.*mask="nan"'):
        ArrayWindows([trajectory(), array], 3, 4)
    with pytest.raises(NonFiniteError, match=r"frame 37.*mask to False"):
        ArrayWindows([array], 3, 4, mask=[np.ones(array.shape[:-1], dtype=bool)])


def test_measured_channel_without_values_is_refused() -> None:
    array = trajectory()
    array[..., 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"Channel 1 .* trajectory 0"):
        ArrayWindows([array], 3, 4, mask="nan")


@pytest.mark.parametrize(
    ("arrays", "options", "error"),
    [
        ([], {}, EmptySplitError),
        ([trajectory(6)], {}, EmptySplitError),
        ([trajectory(), trajectory(grid=(4, 7))], {}, GridMismatchError),
        ([trajectory(grid=(4,)), trajectory()], {}, GridMismatchError),
        ([trajectory(), trajectory(channels=3)], {}, ShapeError),
        ([np.zeros((12, 3))], {}, ShapeError),
        ([trajectory()], {"channels": ["u"]}, ShapeError),
        ([trajectory()], {"measured": [2]}, ShapeError),
        ([trajectory()], {"mask": [np.ones((3, 4), dtype=bool)]}, ShapeError),
        ([trajectory()], {"mask": []}, ShapeError),
        ([trajectory()], {"conditioning": [(1.0,), (2.0,)]}, ShapeError),
        ([trajectory()], {"conditioning": [(math.nan,)]}, NonFiniteError),
        ([trajectory()], {"stride": 0}, ConfigError),
    ],
)
def test_bad_input_raises_a_named_error(arrays, options, error: type[R2NOError]) -> None:
    with pytest.raises(error):
        ArrayWindows(arrays, 3, 4, **options)


def test_subset_is_the_data_set_of_these_trajectories() -> None:
    arrays = [trajectory(seed=seed) for seed in range(3)]
    constants = [(1.0,), (2.0,), (3.0,)]
    whole = ArrayWindows(arrays, 3, 4, conditioning=constants)
    part = whole.subset(trajectories=[2, 0])
    direct = ArrayWindows([arrays[2], arrays[0]], 3, 4, conditioning=[(3.0,), (1.0,)])
    assert part.fingerprint == direct.fingerprint != whole.fingerprint
    assert torch.equal(part.origins, direct.origins)
    for left, right in zip(part, direct, strict=True):
        assert torch.equal(left.history, right.history)
    with pytest.raises(EmptySplitError):
        whole.subset([])
    with pytest.raises(ShapeError):
        whole.subset([3])


def test_fingerprint_changes_with_values_and_settings() -> None:
    array = trajectory()
    changed = array.copy()
    changed[-1, -1, -1, -1] += 1
    prints = {
        ArrayWindows([array], 3, 4).fingerprint,
        ArrayWindows([changed], 3, 4).fingerprint,
        ArrayWindows([array], 4, 3).fingerprint,
        ArrayWindows([array], 3, 4, stride=2).fingerprint,
        ArrayWindows([array], 3, 4, measured=[0]).fingerprint,
        ArrayWindows([array], 3, 4, conditioning=[(1.0,)]).fingerprint,
        ArrayWindows([array], 3, 4, mask="nan").fingerprint,
    }
    assert len(prints) == 7
    assert ArrayWindows([array.copy()], 3, 4).fingerprint in prints


def test_memory_mapped_trajectory_is_neither_copied_nor_pickled(tmp_path) -> None:
    array = trajectory(400, grid=(16, 16))
    np.save(tmp_path / "field.npy", array)
    mapped = np.load(tmp_path / "field.npy", mmap_mode="r")
    for view, plain in ((mapped, array), (mapped[100:], array[100:])):
        windows = ArrayWindows([view], 3, 4)
        assert np.shares_memory(windows._trajectories[0], mapped)
        content = pickle.dumps(windows.subset([0]))
        assert len(content) < array.nbytes / 10
        again = pickle.loads(content)
        assert torch.equal(again[5].target, torch.from_numpy(plain[8:12].copy()))
        assert again.fingerprint == windows.fingerprint


def test_loader_with_worker_processes_gives_the_same_windows() -> None:
    windows = ArrayWindows([trajectory(20)], 3, 4, mask="nan")
    loader = DataLoader(
        windows, batch_size=4, num_workers=1, collate_fn=collate, multiprocessing_context="spawn"
    )
    history = torch.cat([batch.history for batch in loader])
    assert torch.equal(history, torch.stack([window.history for window in windows]))
    assert copy.deepcopy(windows).fingerprint == windows.fingerprint


def test_masked_arrays_are_masks():
    wave = travelling_wave(0).numpy()
    lost = np.random.default_rng(0).random(wave.shape) < 0.2
    bad = np.where(lost, -999.0, wave).astype(np.float32)
    expected = ArrayWindows([wave], 4, 4, mask=[~lost])
    for windows in (
        ArrayWindows([np.ma.array(bad, mask=lost)], 4, 4),
        ArrayWindows([np.ma.array(bad, mask=lost)], 4, 4, mask="nan"),
        ArrayWindows([np.ma.array(bad, mask=lost)], 4, 4, mask=[np.ones(bad.shape[:-1], bool)]),
    ):
        for found, wanted in zip(windows[3], expected[3], strict=True):
            assert torch.equal(found, wanted)
    whole = ArrayWindows([np.ma.array(wave)], 4, 4)
    assert whole[0].mask is None
    opened = r2no_data.open(np.ma.array(bad, mask=lost), variables=("u", "v")).windows(4, 4)
    assert torch.equal(opened[3].target, expected[3].target)
    numbers = np.ma.masked_equal(np.arange(2 * 9 * 8).reshape(9, 2, 8, 1), 7)
    assert not ArrayWindows([numbers], 4, 4)[0].history.eq(7).any()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": "auto"}, ConfigError, "`mask` must be 'nan'"),
        ({"measured": (True,)}, ShapeError, "`measured`"),
        ({"measured": (0, 0)}, ShapeError, "each once"),
        ({"channels": ("u", "u")}, ShapeError, "different names"),
        ({"units": ("m/s",)}, ShapeError, "`units` must hold one entry per channel, 2"),
        ({"spacing": (1.0,)}, ShapeError, "`spacing` must hold one entry per axis, 2"),
        ({"time_step": 0.0}, ConfigError, "`time_step` must be positive"),
        ({"time_step": -1.0}, ConfigError, "`time_step` must be positive"),
        ({"time_step": float("nan")}, ConfigError, "`time_step` must be positive"),
        ({"spacing": (1.0, 0.0)}, ConfigError, "`spacing` and"),
        ({"mask": np.ones((12, 4, 6))}, ShapeError, "`mask` must be a list"),
    ],
)
def test_wrong_arguments_of_windows_are_named(options, error, message):
    with pytest.raises(error, match=message):
        ArrayWindows([np.zeros((12, 4, 6, 2))], 4, 4, **options)


@pytest.mark.parametrize(
    ("trajectories", "error", "message"),
    [
        (torch.zeros(12, 4, 6, 2), ShapeError, "one array of shape"),
        (np.zeros((12, 4, 6, 2)), ShapeError, "one array of shape"),
        ([np.zeros((12, 0, 6, 2))], GridMismatchError, "without points"),
        ([np.zeros((12, 4, 6, 0))], GridMismatchError, "without points"),
        ([np.zeros((12, 4, 6, 2), complex)], DataError, "real numbers"),
        ([torch.zeros(12, 4, 6, 2, dtype=torch.complex64)], DataError, "real numbers"),
        ([np.zeros((12, 4, 6, 2), object)], DataError, "real numbers"),
    ],
)
def test_wrong_trajectories_are_named(trajectories, error, message):
    with pytest.raises(error, match=message):
        ArrayWindows(trajectories, 4, 4)


def test_windows_are_shown_in_a_line():
    windows = ArrayWindows([np.zeros((12, 4, 6, 2))], 4, 4)
    assert (
        repr(windows) == "ArrayWindows(5 windows of 1 recording(s), 4 -> 4 frames of 0, 1 on 4 x 6)"
    )
