"""Arguments: right ones pass as plain values, others are named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from r2no import checks
from r2no.errors import ConfigError, ShapeError


def test_right_arguments_become_plain_values() -> None:
    assert checks.whole("n", np.int64(3)) == 3
    assert checks.real("x", np.float32(0.5)) == 0.5
    assert checks.listed("l", [1, 2]) == (1, 2)
    assert checks.names("names", ["u", "v"]) == ("u", "v")
    assert checks.path("path", "a/b") == Path("a/b")
    assert checks.tensor("field", torch.zeros(2)).shape == (2,)


@pytest.mark.parametrize("value", [True, 2.0, "3", None, np.True_, 0, -1, torch.tensor(3)])
def test_whole_numbers_are_nothing_else(value: Any) -> None:
    with pytest.raises(ConfigError, match="`members` must be"):
        checks.whole("members", value)


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 1j, [1.0]])
def test_numbers_are_real_and_finite(value: Any) -> None:
    with pytest.raises(ConfigError, match="`step` must be"):
        checks.real("step", value)


@pytest.mark.parametrize("value", ["uv", b"uv", None, 3, {"u": 1}])
def test_text_is_no_list_of_letters(value: Any) -> None:
    with pytest.raises(ConfigError, match="`channels` must be a list"):
        checks.names("channels", value)


@pytest.mark.parametrize("value", [None, 3, b"x", "a\0b", ["a"]])
def test_paths_are_text(value: Any) -> None:
    with pytest.raises(ConfigError, match="`path` must"):
        checks.path("path", value)


@pytest.mark.parametrize(
    "value", [np.zeros(2), [0.0], None, torch.zeros(2).int(), torch.zeros(2).cfloat()]
)
def test_fields_are_tensors_of_real_numbers(value: Any) -> None:
    with pytest.raises(ShapeError, match="`field` must be"):
        checks.tensor("field", value)
