"""Works around operations that JAX's proxy client refuses, through this process's memory.

The client refuses these before it sends anything to the proxy (jaxlib 0.10.2), and users meet them
in plain programs: a numpy array that was flipped or broadcast, an array on this machine's CPU, the
cost of a program that was lowered but not compiled, a callback outside of any program.
`executables` and `host_copies` have more of them. Each call is first made unchanged, and repeated
in the other way only if it was refused, so working calls cost nothing more. `fatal_calls` has those
that the client should refuse, and does not.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from . import executables, fatal_calls, host_copies, local, transfer_files
from .attempts import NOT_PJRT, runtime_error, says, when_refused
from .explaining import noting_the_end

__all__ = ["install"]

#: The refusals begin with these texts, or contain them.
_STRIDES = "Negative or zero strides"
_ELSEWHERE = (
    "non-PjRt-compatible client",
    "only supports devices that are instances of",
    "only supports source arrays that are instances of",
    "Unsupported array type for PjRtClient::CopyArrays",
    # The only text of JAX 0.9.
    "Operation only supports arrays created via IFRT Proxy client",
)
_NO_CALLBACKS = "Unsupported host callback type"
_NO_STATISTICS = "MemoryStats is only supported"


@functools.cache
def install() -> None:
    """Installs the workarounds in this process permanently; other clients refuse none of these."""
    xla_client: Any = importlib.import_module("jaxlib.xla_client")
    jaxlib: Any = importlib.import_module("jaxlib._jax")
    array: Any = importlib.import_module("jax._src.array")
    for module, name, wrapped in (
        (xla_client, "batched_device_put", _put),
        (xla_client, "batched_copy_array_to_devices_with_sharding", _copy),
        (xla_client, "batched_block_until_ready", noting_the_end),
        (array.ArrayImpl, "block_until_ready", noting_the_end),
        (jaxlib, "hlo_module_cost_analysis", _analysis),
        (jaxlib.Device, "memory_stats", _statistics),
    ):
        # (Missing parts of another version of JAX must not end the program.)
        if original := getattr(module, name, None):
            setattr(module, name, wrapped(original))
    executables.install()
    host_copies.install()
    fatal_calls.install()
    callback: Any = importlib.import_module("jax._src.callback")
    for name in ("pure_callback", "io_callback"):
        primitive = getattr(callback, f"{name}_p", None)
        called = getattr(callback, f"{name}_impl", None)
        if primitive is not None and called is not None:
            primitive.def_impl(_callback(primitive.impl, called))


def _put(original: Callable[..., Any]) -> Callable[..., Any]:
    def put(aval: Any, sharding: Any, xs: Sequence[Any], *rest: Any, **named: Any) -> Any:
        transfer_files.repair()
        try:
            return original(aval, sharding, xs, *rest, **named)
        except runtime_error() as error:
            if not says(error, _STRIDES, *_ELSEWHERE):
                raise
            plain = {id(x): _plain(x) for x in xs}
            return original(aval, sharding, [plain[id(x)] for x in xs], *rest, **named)

    return put


def _copy(original: Callable[..., Any]) -> Callable[..., Any]:
    def copy(
        arrays: Sequence[Any],
        devices: Sequence[Any],
        shardings: Sequence[Any],
        semantics: Sequence[Any],
    ) -> list[Any]:
        try:
            found: list[Any] = original(arrays, devices, shardings, semantics)
            return found
        except runtime_error() as error:
            if not says(error, *_ELSEWHERE):
                raise
        each = zip(arrays, devices, shardings, semantics, strict=True)
        return [
            _copy_through_memory(a, s)
            if _client(a.sharding) is not _client(s)
            else original([a], [d], [s], [c])[0]
            for a, d, s, c in each
        ]

    return copy


def _copy_through_memory(array: Any, sharding: Any) -> Any:
    """Copies an array to devices of another client."""
    import jax  # noqa: PLC0415 - 40 ms that other programs need not pay

    if not getattr(getattr(sharding, "spec", None), "unreduced", None):
        return jax.device_put(_plain(array), sharding)
    # Each device has a separate summand, so there is no value to copy as a whole.
    parts = [
        jax.device_put(_plain(shard.data), device)
        for shard, device in zip(array.addressable_shards, sharding.mesh.devices.flat, strict=True)
    ]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, parts)


def _analysis(original: Callable[..., Any]) -> Callable[..., Any]:
    def instead(_client: Any, module: Any) -> Any:
        # It depends only on the program, so any client can do it.
        return original(local.hidden_cpu(), module)

    return when_refused(original, (NOT_PJRT,), instead)


def _statistics(original: Callable[..., Any]) -> Callable[..., Any]:
    # (JAX's CPUs have None. A proxy's TPUs have some, but JAX's client cannot query them.)
    return when_refused(
        original, (_NO_STATISTICS,), lambda _device: None, where=local.is_proxied_cpu
    )


def _callback(original: Callable[..., Any], called: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps JAX's handling of a callback outside of any program, for which it compiles one.

    `called` calls the function with arrays of the local CPU.
    """

    def impl(*args: Any, **params: Any) -> list[Any]:
        try:
            compiled: list[Any] = original(*args, **params)
            return compiled
        except runtime_error() as error:
            if not says(error, _NO_CALLBACKS):
                raise
        values, wanted = called(*args, **params), params["result_avals"]
        returned = [(v.shape, v.dtype) for v in values]
        if returned != [(w.shape, w.dtype) for w in wanted]:
            raise RuntimeError(
                "a callback returned "
                f"{', '.join(f'{d.name}{list(s)}' for s, d in returned) or 'nothing'} where "
                f"{', '.join(w.str_short() for w in wanted) or 'nothing'} was declared"
            )
        import jax  # noqa: PLC0415 - see _copy_through_memory

        place = params.get("sharding") or _place_of(args)
        return [jax.device_put(value, place) for value in values]

    return impl


def _place_of(args: Sequence[Any]) -> Any:
    """Returns the placement of a program's result for these arguments; None: JAX's default."""
    import jax  # noqa: PLC0415 - see _copy_through_memory

    bound = [a.sharding for a in args if isinstance(a, jax.Array) and a.committed]
    for sharding in bound:
        if isinstance(sharding, jax.sharding.NamedSharding):
            return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return bound[0] if bound and len(bound[0].device_set) == 1 else None


def _plain(x: Any) -> Any:
    """Returns the same values in memory of this process, in C order."""
    import numpy as np  # noqa: PLC0415

    values = np.asarray(x)
    return values if values.flags.c_contiguous else np.ascontiguousarray(values)


def _client(sharding: Any) -> Any:
    return next(iter(sharding.device_set)).client
