"""Several processes as one: who of them am I, who writes, and how results come together.

Every process runs the same code. Without ``torchrun`` there is one, and everything here does
nothing. With it each takes its share of windows or members, sums are added up, what depends on the
disk or the clock is decided by the first process for all, and the first one alone writes.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from r2no.errors import ConfigError, ProcessError

Given = ParamSpec("Given")
Item = TypeVar("Item")
Result = TypeVar("Result")

#: Others may wait so long for one, such as for its member; a dead one is noticed at once.
_PATIENCE = timedelta(days=7)
_alone = False
_part: float | None = None  # of the windows of a batch: what this process computes


def rank() -> int:
    """Number of this process."""
    return dist.get_rank() if world_size() > 1 else 0


def world_size() -> int:
    """Number of processes that work together."""
    together = dist.is_available() and dist.is_initialized() and not _alone
    return dist.get_world_size() if together else 1


def is_main() -> bool:
    """Whether this process writes files and prints."""
    return rank() == 0


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Join the processes that ``torchrun`` started with this one, if it did; the first one prints.

    CPU tensors travel by gloo, those of CUDA by NCCL.

    Raises:
        ProcessError: if another of the processes ended.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    _meet(backend)
    with contextlib.ExitStack() as stack:
        if not is_main():
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        try:
            try:
                yield
            except SystemExit as end:  # how a command ends, also well
                if not end.code:
                    _leave()
                raise
            _leave()
        except RuntimeError as error:
            if _of_another(error):
                raise ProcessError(
                    f"Process {dist.get_rank()} stopped because another one ended; what happened "
                    "is said there. Run the same command again to go on."
                ) from None
            raise


def _meet(backend: str) -> None:
    """Form the group; what an attempt before this one left in torchrun's store is not read."""
    store, number, size = next(rendezvous("env://", timeout=_PATIENCE))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"r2no-{attempt}", store)
    dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=_PATIENCE)


def _leave() -> None:
    """Wait for the others, so that nobody finds a partner gone, and part."""
    dist.barrier()
    dist.destroy_process_group()


def _of_another(error: RuntimeError) -> bool:
    """Whether an error says that a partner is gone."""
    words = ("closed by peer", "reset by peer", "broken pipe", "connection refused")
    return any(word in str(error).lower() for word in words)


def ends_at_once() -> None:
    """End a failed process of several, without waiting for the others, who then end too."""
    if dist.is_available() and dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Work as if this were the only process, on what the others do not touch."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def barrier() -> None:
    """Wait for every process."""
    if world_size() > 1:
        dist.barrier()


def agreed(value: Result) -> Result:
    """The first process's value, for all: how everybody decides alike."""
    if world_size() == 1:
        return value
    found = [value]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def by_main(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let the first process do something for all, who wait for it and get what it returned."""

    @functools.wraps(function)
    def once(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        found = function(*args, **kwargs) if is_main() else None
        return agreed(found)  # type: ignore[return-value]

    return once


def share(items: Sequence[Item]) -> Sequence[Item]:
    """This process's part: one of each round."""
    return items[rank() :: world_size()]


def check_enough(windows: int) -> None:
    """Refuse more processes than there are windows to share out.

    Raises:
        ConfigError: if a process would have nothing to do.
    """
    if world_size() > windows:
        raise ConfigError(
            f"{world_size()} processes cannot share {windows} window(s). Start at most {windows} "
            "with `torchrun --nproc-per-node`, or give more data."
        )


def add_up(*tensors: Tensor) -> None:
    """Replace each tensor, in place, by its sum over all processes."""
    if world_size() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


@contextlib.contextmanager
def computing(part: float) -> Iterator[None]:
    """This process computes such a part of the windows of a batch, the others the rest."""
    global _part
    before, _part = _part, part
    try:
        yield
    finally:
        _part = before


def fair_count(known: Tensor | None, values: Tensor) -> Tensor | None:
    """What to divide the sum over known ``values`` by; None if that is their plain mean.

    Losses count by windows (:func:`computing`). With N points known in all, and a part p of the
    windows here, Σ_processes p · (Σ_own / pN) is the mean over all. The number known here instead
    would give a mean of means, which is another one where windows have gaps. Within
    :func:`computing` all processes must call this together.
    """
    if world_size() == 1 or _part is None:
        return None if known is None else known.sum().clamp_min(1)
    own = values.new_full((), values.numel()) if known is None else known.sum()
    total = own.double() * float(_part > 0)
    add_up(total)
    return total.clamp_min(1) * (_part or 1.0)


def weighted(values: Mapping[str, float], weight: float) -> dict[str, float]:
    """Σ weight·value over all processes, which have the same names."""
    if world_size() == 1:
        return dict(values)
    totals = torch.tensor(list(values.values()), dtype=torch.float64) * weight
    add_up(totals)
    return dict(zip(values, totals.tolist(), strict=True))


def everyones(value: Result) -> list[Result]:
    """The values of all processes, in their order, for all."""
    if world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, value)
    return found


def in_order(items: Sequence[Item], work: Callable[[Item], Result]) -> Iterator[Result]:
    """Share out ``work``; the first process gets all results in order, the others get none.

    All must exhaust the iterator.
    """
    for start in range(0, len(items), world_size()):
        mine = items[start : start + world_size()]
        found = work(mine[rank()]) if rank() < len(mine) else None
        if world_size() == 1:
            yield found  # type: ignore[misc]
            continue
        together: list[Any] | None = [None] * world_size() if is_main() else None
        dist.gather_object(found, together, dst=0)
        yield from (together or [])[: len(mine)]
