"""How ``v1`` was written, with r2no at commit 6df9eee (format ``r2no.artifact/1``).

It cannot be run with a later format; it is kept to say what the stored numbers are of.
"""

import sys
from pathlib import Path

import torch
from tests.support.waves import travelling_wave

import r2no
from r2no import storage
from r2no.adaptation import EnsembleSettings, RepairSettings
from r2no.data import ArrayWindows
from r2no.training import TrainSettings


def source(history: torch.Tensor) -> torch.Tensor:
    """Half the last frame: exact in binary, so its fingerprint is the same everywhere."""
    return 0.5 * history[:, -1:].expand(-1, 4, -1, -1, -1)


def main(folder: Path) -> None:
    def split(seeds: range) -> ArrayWindows:
        return ArrayWindows([travelling_wave(s) for s in seeds], 4, 4, stride=3, measured=(0,))

    settings = r2no.AdaptSettings(
        members=2,
        repair=RepairSettings(
            width=2, depth=1, steps=2, train=TrainSettings(epochs=3, batch_size=6, lr=5e-3)
        ),
        ensemble=EnsembleSettings(radial=4, angular=2),
    )
    model = r2no.adapt(source, split(range(2)), split(range(10, 14)), settings=settings)
    model.save(folder / "v1")
    history = torch.stack([split(range(20, 21))[number].history for number in (0, 3)])
    expected = {"history": history, "prediction": model.predict(history)}
    storage.save_tensors(folder / "v1-expected.safetensors", expected)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
