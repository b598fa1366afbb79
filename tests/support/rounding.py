"""What another processor would compute: last bits that fall otherwise."""

import math
from dataclasses import replace

import pytest
import torch

from r2no.spectral import FourierCells, wavenumber_radius


def round_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let square roots and arctangents of PyTorch be one unit off, up and down in turn."""
    exact = {name: getattr(torch, name) for name in ("sqrt", "atan2")}

    def off(name: str):
        def rounded(*values: torch.Tensor) -> torch.Tensor:
            value = exact[name](*values)
            up = torch.arange(value.numel()).reshape(value.shape) % 2 == 0
            return torch.nextafter(value, torch.where(up, torch.inf, -torch.inf).to(value))

        return rounded

    for name in exact:
        monkeypatch.setattr(torch, name, off(name))
    monkeypatch.setattr(torch.Tensor, "sqrt", torch.sqrt)


def other_rounding(cells: FourierCells) -> FourierCells:
    """The same partition as made elsewhere: wavenumbers at a band's end are on its other side."""
    reach = wavenumber_radius(cells.grid)
    reach = reach / math.sqrt(len(cells.grid)) if cells.extent == "corner" else reach
    bands = torch.floor(reach * cells.radial * (1 - 1e-13)).long()
    bands = bands.clamp(max=cells.radial - 1)
    return replace(cells, index=bands * cells.angular + cells.index % cells.angular)
