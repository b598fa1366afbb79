"""A pretend accelerator: device "pretend" computes on the CPU, but obeys an accelerator's rules.

A tensor on it is a wrapper around a CPU tensor. As on CUDA, an operation refuses tensors of two
devices, zero-dimensional CPU numbers and CPU indices excepted, and the device has a random
generator of its own. As on MPS, if asked, there is no float64. What crosses between the devices,
and what makes the host wait for the device, is counted.

    with pretend.accelerator(wide=False) as seen:
        model.to(pretend.DEVICE)
        ...
    assert seen.back == 1
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

NAME = "pretend"
_WIDE = (torch.float64, torch.complex128)
_ops = torch.ops.aten

#: Operations whose answer the host needs, or whose result's size does: the host waits for them.
_WAITING = {
    _ops._local_scalar_dense.default,
    _ops.equal.default,
    _ops.nonzero.default,
    _ops.masked_select.default,
    _ops._unique2.default,
    _ops.unique_dim.default,
    _ops.bincount.default,
}
#: Operations that may cross devices.
_COPYING = {_ops._to_copy.default, _ops.copy_.default, _ops._copy_from.default}
#: Operations that take indices from the CPU.
_INDEXING = {
    _ops.index.Tensor,
    _ops.index_put_.default,
    _ops.index_put.default,
    _ops._index_put_impl_.default,
    _ops._unsafe_index.Tensor,
}
_RANDOM = torch.Tag.nondeterministic_seeded


@dataclass
class Seen:
    """What happened: copies to the device, copies back, waits, and what was waited for.

    ``unwaited`` are the copies to it that were asked for without waiting.
    """

    there: int = 0
    unwaited: int = 0
    back: int = 0
    waits: int = 0
    what: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Count anew."""
        self.there = self.unwaited = self.back = self.waits = 0
        self.what.clear()


class _Device:
    """State of the only device: rules in force, generator, counts."""

    def __init__(self) -> None:
        self.present, self.wide, self.memory = False, True, None
        self.random = torch.Generator().manual_seed(0).get_state()
        self.seen = Seen()


_device = _Device()


class _Module(backend_registration._DummyBackendModule):
    """What PyTorch asks of ``torch.pretend``."""

    def is_available(self) -> bool:
        return _device.present

    def device_count(self) -> int:
        return int(_device.present)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def manual_seed_all(self, seed: int) -> None:
        _device.random = torch.Generator().manual_seed(seed).get_state()

    manual_seed = manual_seed_all

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return _device.random.clone()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        _device.random = state.clone()


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
DEVICE = torch.device(NAME, 0)


class _There(torch.Tensor):
    """A tensor on the device."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "_There":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"{self.held!r} on {NAME}"

    def tolist(self):
        _wait("tolist")
        return self.held.tolist()

    def __deepcopy__(self, memo):
        copied = _There(self.held.detach().clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _run(operation, args, dict(kwargs or {}))


def _wait(what: str) -> None:
    _device.seen.waits += 1
    _device.seen.what.append(what)


def _lands_there(operation, args, kwargs, tensors) -> bool:
    """Whether results are on the device; counts a crossing, refuses a mixture."""
    there = [isinstance(tensor, _There) for tensor in tensors]
    if operation in _COPYING:
        if operation is _ops._to_copy.default:
            given = kwargs.get("device")
            start, end = there[0], there[0] if given is None else torch.device(given).type == NAME
        elif operation is _ops.copy_.default:
            start, end = isinstance(args[1], _There), isinstance(args[0], _There)
        else:
            start, end = isinstance(args[0], _There), isinstance(args[1], _There)
        _device.seen.there += end and not start
        _device.seen.unwaited += end and not start and _unwaited(args, kwargs)
        _device.seen.back += start and not end
        return end
    if operation in _INDEXING and isinstance(args[0], _There):
        chosen = [index for index in args[1] if index is not None]
        if any(index.dtype == torch.bool for index in chosen):
            _wait(f"{operation} by a mask")
        return True
    if any(there) and any(t.ndim for t, own in zip(tensors, there, strict=True) if not own):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {operation} got some on "
            f"{NAME} and some on cpu"
        )
    given = kwargs.get("device")
    return any(there) if given is None else torch.device(given).type == NAME


def _unwaited(args, kwargs) -> bool:
    """Whether a copy was asked for without waiting; ``copy_`` has it as its third argument."""
    return bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))


def _run(operation, args, kwargs):
    """Do an operation on what the tensors hold, and wrap what comes out."""
    flat, form = pytree.tree_flatten((args, kwargs))
    tensors = _tensors(flat)
    lands = _lands_there(operation, args, kwargs, tensors)
    if operation in _WAITING:
        _wait(str(operation))
    plain = [item.held if isinstance(item, _There) else item for item in flat]
    known = {id(p): f for p, f in zip(plain, flat, strict=True) if isinstance(f, torch.Tensor)}
    args, kwargs = pytree.tree_unflatten(plain, form)
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    with _own_random() if lands and _RANDOM in operation.tags else contextlib.nullcontext():
        found = operation(*args, **kwargs)

    def back(item):
        if not isinstance(item, torch.Tensor) or id(item) in known:
            return known.get(id(item), item)
        if not lands:
            return item
        view = item.untyped_storage().data_ptr() in memory
        return _There(item) if view else _put(item)

    memory = {tensor.untyped_storage().data_ptr() for tensor in _tensors(plain)}
    return pytree.tree_map(back, found)


def _tensors(items) -> list[torch.Tensor]:
    return [item for item in items if isinstance(item, torch.Tensor)]


def _put(held: torch.Tensor) -> torch.Tensor:
    if held.dtype in _WIDE and not _device.wide:
        raise TypeError(f"Cannot hold {held.dtype} on {NAME}: the device has no float64")
    if _device.memory is not None and held.nbytes > _device.memory:
        raise torch.OutOfMemoryError(f"{NAME} out of memory: tried to allocate {held.nbytes} bytes")
    return _There(held)


@contextlib.contextmanager
def _own_random() -> Iterator[None]:
    """Draw from the device's generator instead of the CPU's."""
    before = torch.get_rng_state()
    torch.set_rng_state(_device.random)
    try:
        yield
    finally:
        _device.random = torch.get_rng_state()
        torch.set_rng_state(before)


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _put(torch.empty(size, dtype=dtype, memory_format=memory_format or _plain()))


def _plain() -> torch.memory_format:
    return torch.contiguous_format


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return _put(torch.empty_strided(size, stride, dtype=dtype))


def _arange(*ends, dtype=None, layout=None, device=None, pin_memory=None):
    return _put(torch.arange(*ends, dtype=dtype))


def _copy_from(source, target, non_blocking=False):
    """What ``torch.tensor(..., device=...)`` ends in."""
    _lands_there(_ops._copy_from.default, (source, target), {}, [source, target])
    plain = [tensor.held if isinstance(tensor, _There) else tensor for tensor in (source, target)]
    plain[1].copy_(plain[0])
    return target


#: Kept alive as long as the process: what makes the first tensor on the device.
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
for _name in ("arange", "arange.start", "arange.start_step"):
    _library.impl(_name, _arange, "PrivateUse1")


@contextlib.contextmanager
def accelerator(*, wide: bool = True, memory: int | None = None) -> Iterator[Seen]:
    """Have the device while the block runs; yields what is counted.

    Args:
        wide: Whether it has float64.
        memory: Largest tensor, in bytes, that it can hold.
    """
    _device.present, _device.wide, _device.memory = True, wide, memory
    _device.seen = Seen()
    try:
        yield _device.seen
    finally:
        _device.present, _device.memory, _device.wide = False, None, True
