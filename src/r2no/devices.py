"""Devices: which one a name means, what it can do, and operators that live on one.

Networks compute on the device that was chosen. So do sums and scores, unless it has no float64
(Apple's MPS, some of Intel's): then these stay on the CPU, see :func:`of_sums`. Whatever is asked,
the answer comes back to where the question was (:func:`answer`).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from r2no._repr import first_line
from r2no.errors import DeviceError, DeviceMemoryError

CPU = torch.device("cpu")
#: How exactly networks multiply: sums, and the state of a loop, are float32 and float64 always.
Precision = Literal["float32", "tf32", "bf16"]


def choose(device: str | torch.device = "auto") -> torch.device:
    """The device that is meant: "auto" is the accelerator if there is one, else the CPU.

    Without a number it is the current one, or under ``torchrun`` that of the local rank.

    Raises:
        DeviceError: if it is not there, with what is.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if str(device) == "auto":
        found = CPU if accelerator is None else accelerator
    else:
        try:
            found = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise DeviceError(
                f"`device` must be auto, cpu, cuda, cuda:1, mps or xpu, but got {device!r}. "
                f"{_there()}"
            ) from error
    if found.type == "cpu":
        return CPU
    if accelerator is None or found.type != accelerator.type or (found.index or 0) >= _count():
        raise DeviceError(f"`device` is {str(device)!r}, but it is not there. {_there()}")
    return torch.device(found.type, _current() if found.index is None else found.index)


def _count() -> int:
    return torch.accelerator.device_count()


def _current() -> int:
    rank = int(os.environ.get("LOCAL_RANK", -1))
    return rank if 0 <= rank < _count() else torch.accelerator.current_device_index()


def _there() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    names = [] if accelerator is None else [f"{accelerator.type}:{n}" for n in range(_count())]
    return f"PyTorch {torch.__version__} finds here: {', '.join(['cpu', *names])}."


def describe(device: torch.device) -> str:
    """A device by its name and, where known, that of the hardware."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    name = getattr(module, "get_device_name", None)
    return str(device) if name is None else f"{device} ({name(device)})"


def has_float64(device: torch.device) -> bool:
    """Whether the device can hold float64."""
    if device.type in ("cpu", "cuda", "mps"):
        return device.type != "mps"
    try:
        torch.empty(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):  # which of the two depends on the device
        return False
    return True


def of_sums(device: torch.device) -> torch.device:
    """Where sums and scores are computed for networks on ``device``: there, if it has float64."""
    return device if has_float64(device) else CPU


def of(operator: Any) -> torch.device | None:
    """Where the weights of an operator are; ``None`` for one without any."""
    if not isinstance(operator, nn.Module):
        return None
    tensors = (*operator.parameters(), *operator.buffers())
    return tensors[0].device if tensors else None


def moved(operator: Any, device: torch.device) -> Any:
    """The operator with its weights on ``device``, in place; a function stays as it is."""
    return operator.to(device) if isinstance(operator, nn.Module) else operator


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; to CUDA by way of pinned memory, so that the host need not wait."""
    if pins(device) and values.device.type == "cpu":
        values = pinned(values)
    return values.to(device, non_blocking=pins(device))


def pins(device: torch.device) -> bool:
    """Whether copies to the device go by way of pinned memory."""
    return device.type == "cuda"


def pinned(values: Tensor) -> Tensor:
    """A copy in pinned memory; the tensor itself, if it is there already."""
    return values.pin_memory()


def at_rest(operator: Any) -> None:
    """Put a network into evaluation mode: no dropout, and BatchNorm keeps its statistics.

    Networks are built in training mode, and somebody who trains one brings it back there.
    """
    if isinstance(operator, nn.Module) and any(module.training for module in operator.modules()):
        with contextlib.suppress(NotImplementedError):  # an exported program has one mode
            operator.eval()


def answer(operator: Callable[[Tensor], Any], history: Tensor) -> Any:
    """What an operator answers, computed where its weights are, given back where ``history`` is.

    A function that is no module gets its history on the CPU, as it does without an accelerator. It
    gets a copy: networks that normalise in place would change what others are told next. Networks
    answer in evaluation mode.
    """
    at_rest(operator)
    place = of(operator) if isinstance(operator, nn.Module) else CPU
    found = operator(history.clone() if place is None else history.to(place, copy=True))
    return found.to(history.device) if isinstance(found, Tensor) else found


def random_state(device: torch.device) -> Tensor | None:
    """The state of the device's own random generator, where it is not the CPU's."""
    if device.type == "cpu":
        return None
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Inverse of :func:`random_state`."""
    torch.get_device_module(device).set_rng_state(state, device)


@contextlib.contextmanager
def forked_random(device: torch.device) -> Iterator[None]:
    """Leave the generators of CPU and device after the block as they were before it."""
    state = random_state(device)
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            if state is not None:
                set_random_state(device, state)


@contextlib.contextmanager
def precise(precision: Precision, device: torch.device) -> Iterator[None]:
    """Let networks multiply in ``precision`` while the block runs; on the CPU tf32 is float32."""
    half = precision == "bf16"
    lower = torch.autocast(device.type, torch.bfloat16) if half else contextlib.nullcontext()
    with products(precision, device), lower:
        yield


@contextlib.contextmanager
def products(precision: Precision, device: torch.device) -> Iterator[None]:
    """Say how CUDA multiplies float32, also in gradients; by itself it rounds convolutions."""
    if device.type != "cuda":
        yield
        return
    parts: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [part.allow_tf32 for part in parts]
    for part in parts:
        part.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        for part, allowed in zip(parts, before, strict=True):
            part.allow_tf32 = allowed


#: What memory errors without a type of their own say: MPS, and the CPU.
_FULL = ("out of memory", "can't allocate memory", "not enough memory")


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the CPU, ran out of memory; not if that was named already."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return not isinstance(error, DeviceMemoryError)
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _FULL)


@contextlib.contextmanager
def memory_named(
    size: int, attempt: Callable[[int], Any], *, remedy: str = "set `batch_size` to {fits}"
) -> Iterator[None]:
    """Turn running out of memory into an error that says how many windows would fit.

    ``attempt`` does the same work on so many windows; it is tried with ever fewer. It may leave
    sums wrong, since they come to nothing. ``remedy`` is what to do with the number.
    """
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        reason = first_line(error)
    fits = _fitting(size // 2, attempt)
    advice = (
        f"{fits} would fit: {remedy.format(fits=fits)}"
        if fits
        else "Not even one fits: take a smaller network, or another device"
    )
    raise DeviceMemoryError(
        f"A batch of {size} windows does not fit into memory ({reason}). {advice}."
    )


@contextlib.contextmanager
def work_named(work: str, remedy: str) -> Iterator[None]:
    """Turn running out of memory in ``work`` that has no batches into an error that names it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        raise DeviceMemoryError(
            f"{work} ran out of memory ({first_line(error)}). {remedy}"
        ) from error


def _fitting(size: int, attempt: Callable[[int], Any]) -> int:
    """The largest of ``size``, its half, ... that can be done; 0 for none."""
    while size > 0:
        try:
            attempt(size)
        except (RuntimeError, MemoryError) as error:
            if not ran_out_of_memory(error):
                raise
        else:
            return size
        size //= 2
    return 0
