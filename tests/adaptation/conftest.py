"""Splits that several modules of these tests adapt to."""

import pytest
from tests.support.adapting import split

from r2no.data import ArrayWindows


@pytest.fixture(scope="module")
def splits() -> dict[str, ArrayWindows]:
    return {"train": split(range(3)), "fit": split(range(10, 14)), "test": split(range(20, 22))}
