"""Arrays as memory of the process: DLPack, the buffer protocol, addresses, transfer guards."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.basics import check, fails
from harness.jax_checks.compared import (
    CLIENTS_OWN,
    JAX_RELEASE,
    Case,
    Devices,
    Told,
    compared,
    mesh,
    tell_all,
)

VALUES = np.arange(8, dtype=np.float32)


class Producer:
    """What has DLPack's protocol only."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def index_of(devices: Devices, array: Any) -> Any:
    return sorted(list(devices).index(device) for device in array.devices())


@compared
def memory_of_others(devices: Devices) -> Told:
    """Of numpy and of what has DLPack's protocol, as arrays of the devices."""

    def made(source: Any, **keywords: Any) -> Case:
        def case() -> Any:
            array = jnp.from_dlpack(source, **keywords)
            return array, index_of(devices, array), array.committed, array.weak_type

        return case

    there = jax.device_put(VALUES, devices[3])
    raw = np.zeros(256, np.uint8)
    start = -raw.ctypes.data % 64
    return tell_all(
        devices,
        {
            "numpy": made(VALUES),
            "doubles": made(VALUES.astype(np.float64)),
            "truth": made(VALUES > 2),
            "rows": made(VALUES.reshape(2, 4)),
            "producer": made(Producer(VALUES)),
            "copied": made(VALUES, copy=True),
            "not copied": made(raw[start : start + 32].view(np.float32), copy=False),
            "not to be copied": made(raw[start + 4 : start + 36].view(np.float32), copy=False),
            "to a device": made(VALUES, device=devices[2]),
            "to a sharding": made(VALUES, device=NamedSharding(mesh(devices), P())),
            "of an array": made(there),
            "of an array to its device": made(there, device=devices[3]),
            "of halves": made(there.astype(jnp.bfloat16)),
            "of 4 bits": made(there.astype(jnp.int4)),
            "used": lambda: jax.jit(lambda x, y: x + y)(jnp.from_dlpack(VALUES), VALUES),
            "no array": made("text"),
            "as an array": lambda: jnp.asarray(Producer(VALUES)),
        },
    )


CLIENTS_OWN["memory_of_others"] = {
    "not copied": (
        "ValueError",
        (
            "The array's place, device 0, requires a copy, however copy=False. Set copy=True or "
            "copy=None to perform the requested operation."
        ),
    ),
}


@compared
def memory_for_others(devices: Devices) -> Told:
    x: Any = jax.device_put(VALUES, devices[1])
    halves: Any = x.astype(jnp.bfloat16)
    spread: Any = jax.device_put(VALUES, NamedSharding(mesh(devices), P(("a", "b"))))
    deleted: Any = x + 1
    deleted.delete()

    def seen(array: Any) -> list[float]:
        return list((ctypes.c_float * 8).from_address(array.unsafe_buffer_pointer()))

    def flags(array: np.ndarray[Any, Any]) -> Any:
        return array, array.flags.writeable

    cases: dict[Any, Case] = {
        "dlpack": lambda: flags(np.from_dlpack(x)),
        "dlpack of halves": lambda: np.from_dlpack(halves),
        "dlpack device": x.__dlpack_device__,
        "dlpack to the cpu": lambda: np.from_dlpack(x, device="cpu"),
        "dlpack copied": lambda: np.from_dlpack(x, copy=True),
        "dlpack not copied": lambda: np.from_dlpack(x, copy=False),
        "dlpack of several": lambda: np.from_dlpack(spread),
        "dlpack of one of several": lambda: np.from_dlpack(spread.addressable_data(3)),
        "dlpack of a deleted one": lambda: np.from_dlpack(deleted),
        "no cuda": lambda: hasattr(x, "__cuda_array_interface__"),
        "address": lambda: seen(x),
        "same address": lambda: x.unsafe_buffer_pointer() == x.unsafe_buffer_pointer(),
        "another address": lambda: (
            jnp.array(x, copy=True).unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
        ),
        "address of several": spread.unsafe_buffer_pointer,
    }
    if sys.version_info >= (3, 12):
        cases |= {
            "not writable": lambda: (ctypes.c_char * 4).from_buffer(x),
            "hash": lambda: hashlib.sha256(x).hexdigest(),
            "bytes": lambda: bytes(x),
            "buffer": lambda: np.frombuffer(x, np.float32),
            "view of truth": lambda: memoryview(x > 2).tolist(),
            "read-only": lambda: memoryview(x).readonly,
            "hash of one of several": lambda: hashlib.sha256(spread.addressable_data(3)).digest(),
        }
    return tell_all(devices, cases)


CLIENTS_OWN["memory_for_others"] = {
    "dlpack not copied": (
        "BufferError",
        (
            "the array is on a proxy, so that a copy is necessary, however copy=False. Set "
            "copy=True or copy=None to perform the requested operation."
        ),
    ),
}


@check
def buffers_that_there_are_none_of() -> None:
    x: Any = jnp.ones(8)
    views: list[Callable[[], Any]] = [
        lambda: memoryview(x.astype(jnp.bfloat16)),
        lambda: memoryview(jax.device_put(x, NamedSharding(mesh(jax.devices()), P()))),
    ]
    for view in views:
        try:
            view()
        except BufferError:
            continue
        raise AssertionError("is a buffer")
    deleted = x + 1
    deleted.delete()
    fails(lambda: np.asarray(deleted), "Array has been deleted")


@compared
def guarded_transfers(devices: Devices) -> Told:
    """What `jax.transfer_guard` lets pass."""
    at = {spec: NamedSharding(mesh(devices), P(*spec)) for spec in ("", "ab")}
    one: Any = jax.device_put(VALUES, devices[1])
    scalar: Any = jax.block_until_ready(one.sum())
    cases: dict[Any, Callable[[], Any]] = {
        "value": lambda: np.asarray(one + one),
        "value of replicas": lambda: np.asarray(jax.device_put(one, at[""])),
        "value of parts": lambda: np.asarray(jax.device_put(one.reshape(2, 4), at["ab"])),
        "got": lambda: jax.device_get(one + one),
        "float": lambda: float(scalar + scalar),
        "item": lambda: methodcaller("item")(scalar + scalar),
        "truth": lambda: bool(scalar + scalar),
        "text": lambda: str(one + one),
        "list": lambda: methodcaller("tolist")(one + one),
        "early": lambda: methodcaller("copy_to_host_async")(one + one),
        "dlpack": lambda: np.from_dlpack(one + one),
        "number": lambda: one + 1,
        "argument": lambda: jax.jit(lambda x: x)(VALUES),
        "put": lambda: jax.device_put(VALUES, devices[1]),
        "moved": lambda: jax.device_put(one, devices[2]),
    }

    def under(level: str, case: Callable[[], Any]) -> Any:
        with jax.transfer_guard(level):
            return jax.tree.map(np.asarray, case())

    levels = ("allow", "disallow", "disallow_explicit")
    told = {
        (level, name): lambda level=level, case=case: under(level, case)
        for level in levels
        for name, case in cases.items()
    }
    return tell_all(devices, told)


@check
def statistics_of_memory() -> None:
    assert jax.devices()[0].memory_stats() is None
    assert JAX_RELEASE < (0, 10) or len(jax.profiler.device_memory_profile()) > 0
