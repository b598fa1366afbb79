"""Runs that go on elsewhere: keys are of content, answers are compared with a tolerance."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.adapting import SETTINGS, Source, split

import r2no
from r2no import storage
from r2no.adaptation import write_predictions
from r2no.errors import ConfigError, FileDamagedError, FingerprintError
from r2no.training import Persistence, cached_source, same_answer


class Rounded(Source):
    """The same weights on a processor that rounds otherwise."""

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        return super().forward(history) * (1 + 2e-7)


def splits() -> tuple[r2no.data.ArrayWindows, r2no.data.ArrayWindows]:
    return split(range(3)), split(range(10, 14))


def test_adaptation_goes_on_where_answers_round_otherwise(tmp_path: Path) -> None:
    train, fit = splits()
    here = r2no.adapt(Source(), train, fit, settings=SETTINGS, folder=tmp_path / "work")
    there = r2no.adapt(Rounded(), train, fit, settings=SETTINGS, folder=tmp_path / "work")
    for mine, theirs in zip(here.loops.modules, there.loops.modules, strict=True):
        assert storage.fingerprint(mine.state_dict()) == storage.fingerprint(theirs.state_dict())
    artifact = here.save(tmp_path / "a.r2no")
    r2no.load(artifact, Rounded())
    other = Source()
    other.factor.data += 1e-3
    with pytest.raises(FingerprintError):
        r2no.load(artifact, other)


def test_answers_are_one_within_the_stated_tolerance_only() -> None:
    answer = torch.tensor([1.0, -200.0, 3.0])
    assert same_answer(answer, answer + 0.9e-4 * 200)
    assert not same_answer(answer, answer + 1.1e-4 * 200)
    assert not same_answer(answer, answer[:2])


def test_answers_on_top_of_a_large_constant_are_told_apart(tmp_path: Path) -> None:
    """A pressure in Pascal: all that is to be known lies in the last thousandth."""
    answer = 101325 + torch.tensor([10.0, -20.0, 30.0])
    assert same_answer(answer, answer + 0.2)  # rounding
    assert not same_answer(answer, answer + 1.0)
    constant = torch.full((3,), 7.0)
    assert same_answer(constant, constant * (1 + 2e-7))
    high = [recording + 1000 for recording in split(range(2)).recordings]
    windows, last = r2no.data.ArrayWindows(high, 4, 4), Persistence(4, 2)
    first = cached_source(lambda h: last(h), windows, tmp_path)
    other = cached_source(lambda h: last(h) + 0.05, windows, tmp_path)
    assert other.path != first.path
    r2no.adapt(
        last, windows, windows, members=0, shared_data=True, also={"b": lambda h: h * 0 + 1000}
    )


def test_cache_of_a_source_without_weights_knows_it_by_its_answers(tmp_path: Path) -> None:
    windows, last = split(range(2)), Persistence(4, 2)
    first = cached_source(lambda h: last(h), windows, tmp_path)
    again = cached_source(lambda h: last(h) * (1 + 2e-7), windows, tmp_path)
    other = cached_source(lambda h: 2 * last(h), windows, tmp_path)
    assert again.path == first.path
    assert other.path != first.path
    assert torch.equal(other[[0]], 2 * first[[0]])


def test_flipped_bit_of_a_cache_is_noticed(tmp_path: Path) -> None:
    windows = split(range(2))
    cache = cached_source(Source(), windows, tmp_path)
    content = bytearray(cache.path.read_bytes())
    content[-1] ^= 1
    cache.path.write_bytes(content)
    found = cached_source(Source(), windows, tmp_path)
    with pytest.raises(FileDamagedError, match=f"window {len(windows) - 1} changed"):
        found[range(len(windows))]


def test_leftovers_of_a_killed_cache_are_removed(tmp_path: Path) -> None:
    cache = cached_source(Source(), split(range(2)), tmp_path)
    for ending in ("tmp", "lock"):
        (tmp_path / f".{cache.path.stem}.safetensors.{ending}").write_text("x")
    cached_source(Source(), split(range(2)), tmp_path)
    assert not list(tmp_path.glob(".*"))


def npz(path: Path, values: np.ndarray) -> r2no.data.Measurements:
    np.savez(path, u=values)
    return r2no.data.open(path, axes=("time", "y", "x"))


def test_forecast_follows_values_and_not_dates(tmp_path: Path) -> None:
    def windows(seeds: range) -> r2no.data.ArrayWindows:
        waves = [one[..., :1] for one in split(seeds).recordings]
        return r2no.data.ArrayWindows(waves, 4, 4, stride=3, channels=("u",))

    model = r2no.adapt(
        Persistence(4, 1), windows(range(3)), windows(range(10, 14)), settings=SETTINGS
    )
    values = np.random.default_rng(0).normal(size=(20, 8, 12)).astype("f4")
    path, out = tmp_path / "data.npz", tmp_path / "f.nc"
    write_predictions(model, npz(path, values), out)
    before, dates = out.read_bytes(), path.stat()
    os.utime(path, ns=(1, 1))
    write_predictions(model, r2no.data.open(path, axes=("time", "y", "x")), out)
    assert out.read_bytes() == before
    values[10, 0, 0] += 1
    changed = npz(path, values)
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    assert path.stat().st_size == dates.st_size
    with pytest.raises(ConfigError, match="another model, data"):
        write_predictions(model, changed, out)


def test_identity_of_data_follows_the_meaning_of_dimensions(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20, 8, 8)).astype("f4")
    np.savez(tmp_path / "square.npz", u=values)
    one, two = (
        r2no.data.open(tmp_path / "square.npz", axes=("time", *axes))
        for axes in (("y", "x"), ("x", "y"))
    )
    assert one.identity != two.identity
