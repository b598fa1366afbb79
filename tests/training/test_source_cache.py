"""The source's forecasts on disk when there is no room for them."""

import resource

import pytest
import torch
from tests.support.adapting import FIT, Source

from r2no.errors import StorageError
from r2no.training import cached_source


def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_room(tmp_path):
    expected = cached_source(Source(), FIT, tmp_path / "whole", batch_size=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = expected.path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * 9 // 10, before[1]))  # a write fails
    try:
        with pytest.raises(StorageError, match=r"Could not write .*Free some space"):
            cached_source(Source(), FIT, tmp_path / "full", batch_size=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "full").glob("h0-*.safetensors"))  # says what is there already
    found = cached_source(Source(), FIT, tmp_path / "full", batch_size=1)
    every = range(len(FIT))
    assert torch.equal(found[every], expected[every])
