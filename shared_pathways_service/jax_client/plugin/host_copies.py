"""Provides arrays of a proxy of CPUs as memory of this process: DLPack, buffer protocol, addresses.

On the local CPU an array's memory belongs to this process, and numpy, PyTorch and others access it
without a copy. For an array of a proxy they get a read-only copy, which the array keeps, as JAX's
arrays never change. In the other direction, memory from DLPack is copied to the proxy. Proxies of
TPUs are not affected, as TPUs have none of this.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import local
from .attempts import NOT_PJRT, when_refused
from .explaining import noting_the_end

__all__ = ["install"]

_NOT_LOCAL = "Only local arrays are supported"
_GUARDED = "Disallowed device-to-host transfer"
#: Methods that fetch values of one device or of several; JAX's version decides which exist.
_FETCHING = (
    "_to_np_array_did_copy",
    "_single_device_array_to_np_array_did_copy",
    "_copy_single_device_array_to_host_async",
    "copy_to_host_async",
)
#: Folders whose functions lie between a caller and the fetching of a value.
_BETWEEN = (__name__.rpartition(".")[0], "jax", "jaxlib")


class _Dropped(threading.local):
    """An error of the buffer protocol that numpy may drop, and where it was called."""

    error: BaseException | None = None
    place: tuple[int, int] | None = None


_dropped = _Dropped()


def install() -> None:
    """Installs this in JAX permanently; arrays of other clients are left to JAX."""
    array: Any = importlib.import_module("jax._src.array").ArrayImpl
    for name in _FETCHING:
        if original := getattr(array, name, None):
            setattr(array, name, noting_the_end(_unguarded(original)))
    array.unsafe_buffer_pointer = when_refused(
        array.unsafe_buffer_pointer, (NOT_PJRT,), _address_of_copy, where=_is_on_proxied_cpu
    )
    array.__cuda_array_interface__ = property(
        when_refused(array.__cuda_array_interface__.__get__, (NOT_PJRT,), _no_cuda)
    )
    # From Python 3.12 on a class may define it (PEP 688); for older ones use numpy.asarray().
    if original := getattr(array, "__buffer__", None):
        array.__buffer__ = when_refused(
            original, (_NOT_LOCAL,), _buffer_of_copy, where=_is_on_proxied_cpu
        )
    dlpack: Any = importlib.import_module("jax._src.dlpack")
    dlpack.to_dlpack = _exported_by(dlpack.to_dlpack)
    # `from_dlpack` itself may have been imported by name before.
    dlpack.xla_bridge = _WithCpu(dlpack.xla_bridge)
    dlpack._place_array = _placed_by(dlpack._place_array)  # noqa: SLF001


def _unguarded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the fetching of values, which `jax.transfer_guard` does not guard on CPUs.

    On a CPU, reading a value on one device is not a transfer. A value on several devices is guarded
    from JAX 0.12 on.
    """
    import jax  # noqa: PLC0415 - 40 ms that other programs need not pay

    def fetched(array: Any) -> Any:
        _raise_dropped()
        return original(array)

    def instead(array: Any) -> Any:
        with jax.transfer_guard_device_to_host("allow"):
            return original(array)

    return when_refused(
        functools.wraps(original, assigned=("__name__", "__doc__"))(fetched),
        (_GUARDED,),
        instead,
        where=lambda array: _is_on_proxied_cpu(array) and array.is_fully_replicated,
    )


def _address_of_copy(array: Any) -> int:
    address: int = _copy(array).__array_interface__["data"][0]
    return address


def _buffer_of_copy(array: Any, flags: int) -> memoryview:
    if len(array.sharding.device_set) > 1:
        raise BufferError("Python buffer protocol is only defined for buffers with a single shard.")
    _dropped.error = None
    try:
        view: memoryview = _copy(array).__buffer__(flags)
    except ValueError as error:  # numpy's: writable, or a type without a format
        raise BufferError(str(error)) from None
    except BaseException as error:
        # `numpy.asarray` drops it, also KeyboardInterrupt, and calls `__array__` instead.
        _dropped.place = _place_of_caller()
        # (A copy, without the traceback, which refers to arrays.)
        with contextlib.suppress(Exception):
            _dropped.error = copy.copy(error)
        raise
    return view


def _raise_dropped() -> None:
    """Raises the error that numpy has just dropped, in place of another wait for the value."""
    error, _dropped.error = _dropped.error, None
    if error is not None and _dropped.place == _place_of_caller():
        raise error


def _place_of_caller() -> tuple[int, int] | None:
    """Identifies the instruction that JAX was called from."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and _is_between(frame.f_globals.get("__name__") or ""):
        frame = frame.f_back
    return (id(frame), frame.f_lasti) if frame is not None else None


def _is_between(module: str) -> bool:
    return any(module == folder or module.startswith(f"{folder}.") for folder in _BETWEEN)


def _no_cuda(_array: Any) -> None:
    # Libraries check for it with `hasattr`.
    raise AttributeError("__cuda_array_interface__ is only defined for GPU buffers.")


def _exported_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the export to a DLPack tensor, which `jax.Array.__dlpack__` calls."""

    def to_dlpack(x: Any, *args: Any, **named: Any) -> Any:
        if _is_on_proxied_cpu(x):
            if named.get("copy") is False:
                raise BufferError(
                    "the array is on a proxy, so that a copy is necessary, however copy=False. "
                    "Set copy=True or copy=None to perform the requested operation."
                )
            x = _copy_of_jax(x)
            (named["src_device"],) = x.devices()
        return original(x, *args, **named)

    return to_dlpack


def _placed_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the placement of an array that is made from a DLPack tensor.

    Without a device it stays where the tensor was: on the CPU. In a program that uses a proxy of
    CPUs, that is the proxy's default device, where its other arrays are.
    """

    def place(array: Any, device: Any, source: Any, copy: bool | None) -> Any:
        import jax  # noqa: PLC0415 - see _unguarded

        config: Any = jax.config
        default = config.jax_default_device
        default = jax.devices()[0] if default is None else default
        is_elsewhere = local.is_hidden(source.client) or (
            source.client.platform == local.CPU
            and isinstance(default, jax.Device)
            and local.is_proxied_cpu(default)
        )
        if device is not None or not is_elsewhere:
            return original(array, device, source, copy)
        if copy is False:
            raise ValueError(
                f"The array's place, {default}, requires a copy, however copy=False. Set "
                "copy=True or copy=None to perform the requested operation."
            )
        return jax.device_put(array, default)

    return place


class _WithCpu:
    """JAX's table of clients, with the CPU's even if JAX is to have none."""

    def __init__(self, xla_bridge: Any) -> None:
        self._xla_bridge = xla_bridge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xla_bridge, name)

    def get_backend(self, platform: Any = None) -> Any:
        try:
            return self._xla_bridge.get_backend(platform)
        except RuntimeError:
            if platform != local.CPU:
                raise
        return local.hidden_cpu()


def _copy(array: Any) -> Any:
    """Returns an array's values in memory of this process; the array keeps the memory."""
    return array._value  # noqa: SLF001 - what numpy.asarray() returns may be a view of it


def _copy_of_jax(array: Any) -> Any:
    """Returns an array's values as an array of this machine's CPU."""
    import jax  # noqa: PLC0415 - see _unguarded

    xla_client: Any = importlib.import_module("jaxlib.xla_client")
    core: Any = importlib.import_module("jax._src.core")
    device = (
        _WithCpu(importlib.import_module("jax._src.xla_bridge")).get_backend("cpu").devices()[0]
    )
    aval = core.ShapedArray(array.shape, array.dtype)
    # (64-bit values stay as they are, even if JAX is configured not to create any.)
    with jax.enable_x64(True), jax.transfer_guard("allow"):
        return xla_client.batched_device_put(
            aval, jax.sharding.SingleDeviceSharding(device), [_copy(array)], [device], True
        )


def _is_on_proxied_cpu(array: Any) -> bool:
    return local.is_proxied_cpu(next(iter(array.sharding.device_set)))
