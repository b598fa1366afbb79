"""Ranks: one process without ``torchrun``, many with it; the same code for both."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from r2no._types import PathLike
from r2no.locks import sole_writer


def rank() -> int:
    """Number of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process writes files and prints."""
    return rank() == 0


@contextlib.contextmanager
def sole_run(path: PathLike) -> Iterator[None]:
    """Be the only run that writes ``path``; of a run's processes the first one holds the lock."""
    with sole_writer(path) if is_main() else contextlib.nullcontext():
        yield


def barrier() -> None:
    """Wait for every process."""
    if world_size() > 1:
        dist.barrier()


def add_up(*tensors: Tensor) -> None:
    """Replace each tensor, in place, by its sum over all processes."""
    if world_size() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def share(numbers: list[int]) -> list[int]:
    """This process's part of a batch."""
    return numbers[rank() :: world_size()]


def add_up_gradients(parameters: Iterable[Tensor]) -> None:
    """Sum the gradients over all processes (each weights its loss by its share of the batch)."""
    if world_size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)


def broadcast_buffers(buffers: Iterable[Tensor]) -> None:
    """Give every process rank 0's buffers, such as BatchNorm's running statistics."""
    if world_size() > 1:
        for buffer in buffers:
            dist.broadcast(buffer, src=0)
