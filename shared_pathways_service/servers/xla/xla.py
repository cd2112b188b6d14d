"""XLA's client: all use of jaxlib, and of jax where jaxlib does not suffice.

Nothing here knows requests, handles or slices. Private names: `jaxlib._jax` has compile options,
device lists and copies between devices, none of which has a public name; `jax._src` has the
sharding of several devices. Differences of these between releases are handled in `xla_internals`;
programs as MLIR modules are read and written in `mlir`, compiled ones are read in
`xla_executables`. This process never makes a backend of JAX: the devices are those of clients made
here.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jaxlib.version
import numpy as np
from jax._src.sharding_impls import GSPMDSharding
from jax.sharding import SingleDeviceSharding
from jaxlib import _jax, cpu_sparse, xla_client
from jaxlib.cpu import _lapack

from shared_pathways_service.api.faulty_jax import SOUND_FLAG, fault_of
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.interface import Array, ArraySpec, Place
from shared_pathways_service.servers.devices.status_errors import array_gone
from shared_pathways_service.servers.xla.file_options import check_overrides
from shared_pathways_service.servers.xla.mlir import mlir_context
from shared_pathways_service.servers.xla.platforms import CPU, Platform
from shared_pathways_service.servers.xla.resharding import recut
from shared_pathways_service.servers.xla.xla_executables import XlaExecutable
from shared_pathways_service.servers.xla.xla_flags import check_debug_options
from shared_pathways_service.servers.xla.xla_internals import (
    fingerprint,
    shaped_array,
    single_array,
)

__all__ = ["XlaClient", "warm_up"]

_COPY = _jax.ArrayCopySemantics.ALWAYS_COPY
#: XLA accepts no other text as a boolean.
_BOOLEANS = {"true": True, "false": False}


#: XLA's own debugging aids that end the process instead of the compilation.
_NO_CRASHES = tuple(
    (f"xla_unsupported_crash_on_hlo_pass_{what}", False)
    for what in ("noop_change", "silent_hlo_change")
)
#: With it a faulty release of jaxlib computes right (a client's options have its own release's).
_SOUND = (SOUND_FLAG,) if fault_of(jaxlib.version.__version__) else ()


class XlaClient:
    """A `DeviceClient` in this process.

    Several clients are independent but share the host's memory, so an array passes from one to
    another without a copy. Of a client over the devices of several processes, each has the pieces
    of its own devices, and all compile and run the same programs in the same order.
    """

    def __init__(self, device_ids: Sequence[int], platform: Platform = CPU) -> None:
        warm_up()
        self._client, devices = platform.devices(device_ids)
        self.platform = platform.name
        self.memory_kinds = _memory_kinds(self._client.local_devices()[0])
        self._devices: dict[int, Any] = dict(zip(device_ids, devices, strict=True))
        self._elsewhere = frozenset(
            i for i, d in self._devices.items() if d.process_index != self._client.process_index()
        )
        self._own = {self._devices[i].id: i for i in self._here(device_ids)}
        self._single = {
            (i, kind): SingleDeviceSharding(device, memory_kind=kind)
            for i, device in self._devices.items()
            for kind in self.memory_kinds
        }

    # ---- shardings

    def single_sharding(self, device_id: int, memory_kind: str) -> Any:
        """Returns JAX's sharding of an array on one device."""
        return self._single[device_id, memory_kind]

    def hlo_sharding(self, device_ids: Sequence[int], serialized: bytes, memory_kind: str) -> Any:
        """Returns JAX's sharding for a serialised xla.OpSharding."""
        sharding = xla_client.OpSharding()
        sharding.ParseFromString(serialized)
        devices = tuple(self._devices[i] for i in device_ids)
        return GSPMDSharding(devices, sharding, memory_kind=memory_kind)

    # ---- arrays

    def put(self, spec: ArraySpec, shards: Sequence[Any]) -> Array:
        """Makes an array from one host array per device, without a copy if memory is aligned."""
        devices = [self._devices[i] for i in self._here(spec.placing.device_ids)]
        aval = shaped_array(spec.shape, spec.dtype)
        return xla_client.batched_device_put(
            aval, spec.placing.sharding, list(shards), devices, True, enable_x64=True
        )

    def fetch(self, array: Array) -> list[np.ndarray]:
        """Returns the pieces; on the CPU they are the array's own memory."""
        return [np.asarray(part) for part in self.parts(array)]

    def reading(self, array: Array) -> contextlib.AbstractContextManager[list[np.ndarray]]:
        """Returns the pieces as `fetch` does."""
        return contextlib.nullcontext(self.fetch(array))

    def parts(self, array: Array) -> list[Array]:
        """Returns the pieces as arrays on single devices."""
        parts: list[Array] | None = array._arrays  # noqa: SLF001 - addressable_shards is far slower
        if parts is None:
            raise array_gone()
        return parts

    def join(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes one array of arrays on single devices."""
        return single_array(spec.shape, spec.dtype, spec.placing.sharding, list(parts))

    def adopt(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes an array of another client's arrays, without a copy if XLA needs none."""
        return self.put(spec, [np.asarray(part) for part in parts])

    def copy(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Copies arrays on single devices, each to a memory of a device."""
        device_ids, memory_kind = self._here(spec.placing.device_ids), spec.placing.memory_kind
        copied: list[Array] = _jax.batched_copy_array_to_devices_with_sharding(
            list(parts),
            [_jax.DeviceList((self._devices[i],)) for i in device_ids],
            [self._single[i, memory_kind] for i in device_ids],
            [_COPY] * len(parts),
        )
        xla_client.batched_block_until_ready(copied)
        return copied[0] if len(spec.placing.device_ids) == 1 else self.join(spec, copied)

    def reinterpret(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes an array of the pieces' own memory, if XLA needs no copy."""
        shape = spec.placing.shard_shape(spec.shape)
        pieces = [np.asarray(part) for part in parts]
        views = [piece.reshape(-1).view(spec.dtype).reshape(shape) for piece in pieces]
        return self.put(spec, views)

    def reshard(self, spec: ArraySpec, held: Place, parts: Sequence[Array]) -> Array:
        """Cuts the new pieces out of the old ones in the host's memory."""
        pieces = [np.asarray(part) for part in parts]
        wanted = spec.placing.pieces(spec.shape)
        return self.put(spec, recut(spec.shape, held.pieces(spec.shape), pieces, wanted))

    def is_deleted(self, array: Array) -> bool:
        """Whether a piece of the array is deleted, or was donated to a program."""
        deleted: bool = array.is_deleted()
        return deleted

    def addresses(self, array: Array) -> list[int]:
        """Returns the addresses of the pieces."""
        return [part.unsafe_buffer_pointer() for part in self.parts(array)]

    def default_layout(self, dtype: Any, shape: Sequence[int], device_id: int) -> str:
        """Returns the text of the layout that arrays of this type have on a device."""
        return str(self._client.get_default_layout(dtype, list(shape), self._devices[device_id]))

    # ---- programs

    def identity(self) -> bytes:
        """Returns what programs compiled here depend on, besides themselves and the machine."""
        topology = xla_client.get_topology_for_devices(list(self._devices.values()))
        parts = (
            jaxlib.version.__version__,
            topology.platform,
            topology.platform_version,
            fingerprint(topology),
            len(self._devices),
            *sorted({device.device_kind for device in self._devices.values()}),
            os.environ.get("XLA_FLAGS", ""),
        )
        return repr(parts).encode()

    def options(
        self, options: bytes, device_ids: Sequence[int], flags: Sequence[tuple[str, str]] = ()
    ) -> Any:
        """Returns jaxlib's options, with flags over them and with devices of this client."""
        message = xla_pb2.CompileOptionsProto.FromString(options)
        # XLA crashes with another negative number, or one beyond the devices, and needs none with a
        # device assignment.
        message.executable_build_options.device_ordinal = -1
        parsed = _jax.CompileOptions.ParseFromString(message.SerializeToString())
        check_debug_options(
            message.executable_build_options.debug_options, parsed.env_option_overrides
        )
        check_overrides(parsed.env_option_overrides)
        self.assign(parsed, device_ids)
        parsed.env_option_overrides = [*parsed.env_option_overrides, *_NO_CRASHES, *_SOUND]
        if flags:
            overrides = [(name, _BOOLEANS.get(value.lower(), value)) for name, value in flags]
            parsed.env_option_overrides = [*parsed.env_option_overrides, *overrides]
        return parsed

    def assign(self, options: Any, device_ids: Sequence[int]) -> None:
        """Sets the devices of a program in options that another client may have made."""
        ours = [[self._devices[i].id for i in device_ids]]
        assignment = xla_client.DeviceAssignment.create(np.array(ours))
        options.executable_build_options.device_assignment = assignment

    def compile(
        self,
        program: Any,
        device_ids: Sequence[int],
        options: Any,
        callbacks: Sequence[Callable[..., Any]] = (),
    ) -> XlaExecutable:
        """Compiles a program for some devices."""
        devices = self._device_list(device_ids)
        if callbacks:
            made = self._client.compile_and_load(program, devices, options, list(callbacks))
        else:
            made = self._client.compile_and_load(program, devices, options)
        return XlaExecutable(made, self._own)

    def load(self, serialized: bytes, device_ids: Sequence[int], options: Any) -> XlaExecutable:
        """Loads a program that another process compiled."""
        devices = self._device_list(device_ids)
        loaded = self._client.deserialize_executable(serialized, devices, options)
        return XlaExecutable(loaded, self._own)

    def _here(self, device_ids: Sequence[int]) -> Sequence[int]:
        if not self._elsewhere:
            return device_ids
        return [i for i in device_ids if i not in self._elsewhere]

    def _device_list(self, device_ids: Sequence[int]) -> Any:
        return _jax.DeviceList(tuple(self._devices[i] for i in device_ids))


def _memory_kinds(device: Any) -> tuple[str, ...]:
    first = device.default_memory().kind
    return (first, *(m.kind for m in device.addressable_memories() if m.kind != first))


@functools.cache
def warm_up() -> None:
    """Loads what is slow to load; does not read XLA's flags."""
    # Without this a program that calls LAPACK crashes with a segmentation fault.
    _lapack.initialize()
    # (JAX registers these with jax.experimental.sparse only.)
    for name, kernel, version in cpu_sparse.registrations()["cpu"]:
        xla_client.register_custom_call_target(name, kernel, platform="cpu", api_version=version)
    mlir_context()
