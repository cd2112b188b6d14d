"""XLA's client: all that the proxy uses of jaxlib, and of jax where jaxlib alone does not do.

Nothing here knows of requests, handles or slices. The private names that are used, and why:
`jaxlib._jax` has compile options, device lists, the reading of portable StableHLO and copies
between devices, none of which has a public name; `jax._src` has the abstract value that jaxlib's
array functions want, the array class itself, and a context that knows every dialect of a program.
What of them differs between releases is in `xla_internals`.
No backend of JAX is ever made in this process: the devices are those of clients made here.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import os
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol

import jax
import jaxlib.version
import numpy as np
from jax._src.interpreters import mlir as _jax_mlir
from jax._src.sharding_impls import GSPMDSharding
from jax.sharding import SingleDeviceSharding
from jaxlib import _jax, cpu_sparse, xla_client
from jaxlib.cpu import _lapack
from jaxlib.mlir import ir, passmanager

from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.proxy.file_options import check_overrides
from shared_pathways_service.servers.proxy.named_shardings import as_tiles
from shared_pathways_service.servers.proxy.operation_attributes import TOKEN_TYPE
from shared_pathways_service.servers.proxy.platforms import CPU, Platform
from shared_pathways_service.servers.proxy.program_bytecode import check_bytecode
from shared_pathways_service.servers.proxy.program_text import check_text
from shared_pathways_service.servers.proxy.xla_flags import check_debug_options
from shared_pathways_service.servers.proxy.xla_internals import (
    fingerprint,
    read_portable_artifact,
    result_handler,
    shaped_array,
    sharding_proto,
    single_array,
)

__all__ = [
    "DEVICE_MEMORY",
    "MainTypes",
    "TensorType",
    "aliased_parameters",
    "XlaClient",
    "canonical",
    "dumps",
    "forget",
    "is_deleted",
    "main_types",
    "name_of",
    "op_sharding",
    "own_debug_options",
    "parse",
    "parts_of",
    "pointers",
    "serialized",
    "warm_up",
    "written",
]

Array = Any  # jaxlib's array; it has no type that mypy could know


class HasSharding(Protocol):
    """Where an array lies."""

    @property
    def device_ids(self) -> Sequence[int]:
        """One a piece."""

    @property
    def sharding(self) -> Any:
        """As XLA's arrays have it."""


class ArraySpec(Protocol):
    """What an array is: `Spec`, as far as XLA needs it."""

    @property
    def dtype(self) -> Any:
        """As numpy has it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""

    @property
    def placing(self) -> HasSharding:
        """Where its pieces lie."""


#: The memory that an array is in unless its sharding says otherwise.
DEVICE_MEMORY = "device"
_COPY = _jax.ArrayCopySemantics.ALWAYS_COPY
#: XLA reads no other text as a truth value.
_BOOLEANS = {"true": True, "false": False}
#: Object files of a program that can be loaded again. XLA's loader nests one deeper for each,
#: 2.1 kB of a thread's stack that nobody can enlarge: of 2 MiB on Linux, where the process ends at
#: 998.
_LOADABLE_OBJECTS = 400 if sys.platform == "linux" else 100
_OBJECT_FILES = (b"\x7fELF", b"\xcf\xfa\xed\xfe")


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """An argument or result of a program: element type as StableHLO writes it, and shape.

    A token's element is ``token``; it has no dimensions.
    """

    element: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MainTypes:
    """What a program's main function takes and returns, globally.

    Attributes:
      donated: Indices of arguments whose memory the program is offered.
    """

    arguments: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    donated: tuple[int, ...]


#: XLA's own debugging aids that end the process instead of the compilation.
_NO_CRASHES = tuple(
    (f"xla_unsupported_crash_on_hlo_pass_{what}", False)
    for what in ("noop_change", "silent_hlo_change")
)


class XlaClient:
    """Some devices, and arrays and programs on them.

    A client runs its programs over several devices one after the other, whichever devices they
    are on: one that does not end holds up all others of the same client. Several clients in one
    process know nothing of each other but share the host's memory, so an array passes from one
    to another without a copy.

    Args:
      device_ids: What its devices are called outside.
      platform: Whose devices they are.

    Attributes:
      platform: The name of what its programs are compiled for.
      memory_kinds: Of each device, the one that an array is in unless its sharding says otherwise
        first. What is in one is not in another.
    """

    def __init__(self, device_ids: Sequence[int], platform: Platform = CPU) -> None:
        warm_up()
        self._client, devices = platform.devices(device_ids)
        self.platform = platform.name
        self.memory_kinds = _memory_kinds(devices[0])
        self._devices: dict[int, Any] = dict(zip(device_ids, devices, strict=True))
        self._single = {
            (i, kind): SingleDeviceSharding(device, memory_kind=kind)
            for i, device in self._devices.items()
            for kind in self.memory_kinds
        }

    # ---- shardings

    def single_sharding(self, device_id: int, memory_kind: str) -> Any:
        """Returns the sharding of an array on one device."""
        return self._single[device_id, memory_kind]

    def hlo_sharding(self, device_ids: Sequence[int], serialized: bytes, memory_kind: str) -> Any:
        """Returns the sharding that a serialised xla.OpSharding describes."""
        sharding = xla_client.OpSharding()
        sharding.ParseFromString(serialized)
        devices = tuple(self._devices[i] for i in device_ids)
        return GSPMDSharding(devices, sharding, memory_kind=memory_kind)

    # ---- arrays

    def put(self, spec: ArraySpec, shards: Sequence[Any]) -> Array:
        """Makes an array of one host array a device, without a copy where memory is aligned."""
        devices = [self._devices[i] for i in spec.placing.device_ids]
        aval = shaped_array(spec.shape, spec.dtype)
        return xla_client.batched_device_put(
            aval, spec.placing.sharding, list(shards), devices, True, enable_x64=True
        )

    def join(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes one array of arrays on single devices."""
        return single_array(spec.shape, spec.dtype, spec.placing.sharding, list(parts))

    def adopt(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes an array of another client's arrays, without a copy where XLA can do without."""
        return self.put(spec, [np.asarray(part) for part in parts])

    def copy(
        self, parts: Sequence[Array], device_ids: Sequence[int], memory_kind: str = DEVICE_MEMORY
    ) -> list[Array]:
        """Copies arrays on single devices, each to a memory of a device."""
        copied: list[Array] = _jax.batched_copy_array_to_devices_with_sharding(
            list(parts),
            [_jax.DeviceList((self._devices[i],)) for i in device_ids],
            [self._single[i, memory_kind] for i in device_ids],
            [_COPY] * len(parts),
        )
        return copied

    def default_layout(self, dtype: Any, shape: Sequence[int], device_id: int) -> str:
        """Returns the text of the layout that arrays of this type have on a device."""
        return str(self._client.get_default_layout(dtype, list(shape), self._devices[device_id]))

    # ---- programs

    def identity(self) -> bytes:
        """Returns what programs compiled here depend on, beside themselves and the machine."""
        topology = xla_client.get_topology_for_devices(list(self._devices.values()))
        told = (
            jaxlib.version.__version__,
            topology.platform,
            topology.platform_version,
            fingerprint(topology),
            len(self._devices),
            *sorted({device.device_kind for device in self._devices.values()}),
            os.environ.get("XLA_FLAGS", ""),
        )
        return repr(told).encode()

    def options(
        self,
        options: bytes,
        device_ids: Sequence[int],
        flags: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """Reads compile options, for devices of this client.

        Args:
          options: A serialised xla.CompileOptionsProto.
          device_ids: In the order of the device assignment.
          flags: XLA's flags, names and values, that go before what the options say.

        Raises:
          StatusError: XLA would end the process for one of them, or write or read files.
        """
        message = xla_pb2.CompileOptionsProto.FromString(options)
        # XLA ends the process at another number below 0, or at one beyond the devices, and needs
        # none beside a device assignment.
        message.executable_build_options.device_ordinal = -1
        parsed = _jax.CompileOptions.ParseFromString(message.SerializeToString())
        check_debug_options(
            message.executable_build_options.debug_options, parsed.env_option_overrides
        )
        check_overrides(parsed.env_option_overrides)
        ours = [[self._devices[i].id for i in device_ids]]
        assignment = xla_client.DeviceAssignment.create(np.array(ours))
        parsed.executable_build_options.device_assignment = assignment
        parsed.env_option_overrides = [*parsed.env_option_overrides, *_NO_CRASHES]
        if flags:
            overrides = [(name, _BOOLEANS.get(value.lower(), value)) for name, value in flags]
            parsed.env_option_overrides = [*parsed.env_option_overrides, *overrides]
        return parsed

    def compile(
        self,
        program: Any,
        device_ids: Sequence[int],
        options: Any,
        callbacks: Sequence[Callable[..., Any]] = (),
    ) -> Any:
        """Compiles a program for some devices.

        Args:
          program: Portable StableHLO, as `CompileRequest.program.data` has it, or MLIR as text; a
            module where it calls functions.
          device_ids: In the order of the device assignment.
          options: Made by `options` for the same devices.
          callbacks: Functions that it calls by their index; they take and return numpy arrays.
        """
        devices = self._device_list(device_ids)
        if callbacks:
            return self._client.compile_and_load(program, devices, options, list(callbacks))
        return self._client.compile_and_load(program, devices, options)

    def load(self, serialized: bytes, device_ids: Sequence[int], options: Any) -> Any:
        """Loads what `serialized` made of a program compiled with the same arguments.

        It must be known to come from there: it is run as it is.
        """
        devices = self._device_list(device_ids)
        return self._client.deserialize_executable(serialized, devices, options)

    def _device_list(self, device_ids: Sequence[int]) -> Any:
        return _jax.DeviceList(tuple(self._devices[i] for i in device_ids))

    def runner(
        self, executable: Any, results: Sequence[ArraySpec]
    ) -> Callable[[list[Array]], list[Array]]:
        """Returns a function that runs a program to its end.

        Args:
          executable: What `compile` made.
          results: What each result is.
        """
        handlers = [
            result_handler(spec.shape, spec.dtype, spec.placing.sharding) for spec in results
        ]
        if not handlers:

            def run_for_effect(arguments: list[Array]) -> list[Array]:
                ran = executable.execute_sharded(arguments, with_tokens=True)
                ran.consume_token().block_until_ready()
                return []

            return run_for_effect

        def run(arguments: list[Array]) -> list[Array]:
            ran = executable.execute_sharded(arguments)
            arrays: list[Array] = ran.consume_with_handlers(handlers)
            xla_client.batched_block_until_ready(arrays)
            return arrays

        return run


def _memory_kinds(device: Any) -> tuple[str, ...]:
    first = device.default_memory().kind
    return (first, *(m.kind for m in device.addressable_memories() if m.kind != first))


def forget() -> None:
    """Lets go of clients that JAX only remembers, by the shardings that it has looked at."""
    jax.clear_caches()


def serialized(executable: Any) -> bytes | None:
    """Returns a program as `XlaClient.load` takes it; None: it could not be loaded."""
    data: bytes = executable.serialize()
    if executable.local_devices()[0].platform != "cpu":
        return data
    objects = sum(data.count(magic) for magic in _OBJECT_FILES)
    return data if objects <= _LOADABLE_OBJECTS else None


def dumps(options: Any) -> bool:
    """Whether these options have XLA write down what it does while it compiles."""
    if options.executable_build_options.debug_options.xla_dump_to:
        return True
    # (XLA_FLAGS of the environment are in the debug options of the program that compiles.)
    names = [name for name, _ in options.env_option_overrides]
    return any(name.startswith("xla_dump_") for name in names)


@functools.cache
def own_debug_options() -> bytes:
    """Returns this process's debug options, serialised: XLA's defaults and its flags."""
    options = _jax.CompileOptions()
    _ = options.executable_build_options.debug_options  # (Only made when it is looked at.)
    message = xla_pb2.CompileOptionsProto.FromString(options.SerializeAsString())
    return message.executable_build_options.debug_options.SerializeToString()


@functools.cache
def warm_up() -> None:
    """Loads what is slow to load; does not read XLA's flags."""
    # A program that calls LAPACK before this ends the process with a segmentation fault.
    _lapack.initialize()
    # (JAX registers these with jax.experimental.sparse only.)
    for name, kernel, version in cpu_sparse.registrations()["cpu"]:
        xla_client.register_custom_call_target(name, kernel, platform="cpu", api_version=version)
    _context()


@functools.cache
def _context() -> Any:
    return _jax_mlir.make_ir_context()


def parts_of(array: Array) -> list[Array]:
    """Returns an array's pieces, one a device, in the order of its sharding's devices."""
    parts: list[Array] = array._arrays  # noqa: SLF001 - addressable_shards is far slower
    return parts


def is_deleted(array: Array) -> bool:
    """Whether a piece of the array is deleted, or has been given to a program."""
    deleted: bool = array.is_deleted()
    return deleted


def pointers(array: Array) -> list[int]:
    """Returns where in memory the array's pieces lie."""
    return [part.unsafe_buffer_pointer() for part in parts_of(array)]


_ALIASES = re.compile(r"input_output_alias=\{((?:[^{}]|\{[^{}]*\})*)\}")
_ALIASED_PARAMETER = re.compile(r"\((\d+), \{")


def aliased_parameters(executable: Any) -> frozenset[int]:
    """Returns the indices of arguments whose memory the program takes for its results.

    Slow: the whole program is printed, the only form in which jaxlib tells it.
    """
    header = executable.hlo_modules()[0].to_string().split("\n", 1)[0]
    found = _ALIASES.search(header)
    return frozenset(map(int, _ALIASED_PARAMETER.findall(found[1]))) if found else frozenset()


def op_sharding(sharding: Any) -> bytes:
    """Returns a sharding of an executable as a serialised xla.OpSharding, in tiles."""
    return as_tiles(xla_pb2.OpSharding.FromString(sharding_proto(sharding))).SerializeToString()


def parse(program: bytes) -> Any:
    """Reads a program.

    Args:
      program: Portable StableHLO, or MLIR as text or bytecode.

    Returns:
      An MLIR module, for `main_types` and `canonical`.

    Raises:
      StatusError: INVALID_ARGUMENT: the parser would end the process.
    """
    check_text(program)
    context = _context()
    with context:
        check_bytecode(program)
        try:
            read = read_portable_artifact(program, context)
        except Exception:  # noqa: BLE001 - its type is jaxlib's; what is no artifact may be MLIR
            read = program
        if isinstance(read, str):  # of a portable artifact, in some releases
            read = read.encode()
            check_text(read, verified=True)
        return ir.Module.parse(read) if isinstance(read, bytes) else read


def name_of(module: Any) -> str:
    """Returns a parsed program's name; empty if it has none."""
    with _context():
        attributes = module.operation.attributes
        return str(attributes["sym_name"].value) if "sym_name" in attributes else ""


def main_types(module: Any) -> MainTypes:
    """Returns what the main function of a parsed program takes and returns."""
    with _context():
        for operation in module.body.operations:
            if operation.operation.name == "func.func" and operation.name.value == "main":
                return MainTypes(
                    tuple(_tensor(t) for t in operation.type.inputs),
                    tuple(_tensor(t) for t in operation.type.results),
                    _donated(operation, len(operation.type.inputs)),
                )
    raise ValueError("INVALID_ARGUMENT: the program has no main function")


#: Operations of StableHLO that do something once for each element, or less.
_ONCE_AN_ELEMENT = """
abs add and atan2 bitcast_convert broadcast_in_dim cbrt ceil clamp compare complex concatenate
constant convert cosine count_leading_zeros create_token divide dynamic_slice dynamic_update_slice
exponential exponential_minus_one floor imag iota is_finite log log_plus_one logistic maximum
minimum multiply negate not optimization_barrier or pad popcnt power real reduce remainder reshape
return reverse round_nearest_afz round_nearest_even rsqrt select shift_left shift_right_arithmetic
shift_right_logical sign sine slice sqrt subtract tan tanh transpose xor
"""
_QUICK = frozenset(f"stablehlo.{name}" for name in _ONCE_AN_ELEMENT.split()) | {
    "func.func",
    "func.return",
}
#: Operations of a program, and elements of each value, up to which it is a quick one.
_FEW = 64
_SMALL = 16 << 10


def is_quick(module: Any, custom_calls: Container[str] = ()) -> bool:
    """Whether a parsed program is sure to end at once, whatever its arguments are.

    It is small, and has no loop, no calls within calls and nothing that may wait.

    Args:
      module: The program.
      custom_calls: Names of those that take no time.
    """
    with _context():
        functions: dict[str, Any] = {}
        for operation in module.body.operations:
            if operation.operation.name == "func.func":
                functions[operation.name.value] = operation.operation
            elif operation.operation.name != "sdy.mesh":
                return False
        main = functions.pop("main", None)
        if main is None:
            return False
        costs = {name: _cost(function, {}, custom_calls) for name, function in functions.items()}
        return _cost(main, costs, custom_calls) <= _FEW


def _cost(function: Any, callees: Mapping[str, int], custom_calls: Container[str]) -> int:
    """Returns how many operations a function does; too many, if one is large or may take long.

    Args:
      function: Of a module.
      callees: What it may call, each with its cost.
      custom_calls: As of `is_quick`.
    """
    cost = 0

    def look(operation: Any) -> Any:
        nonlocal cost
        cost += 1
        known = operation.name in _QUICK
        if operation.name == "func.call":
            callee = operation.attributes["callee"].value
            known = callee in callees
            cost += callees.get(callee, 0)
        elif operation.name == "stablehlo.custom_call":
            known = operation.attributes["call_target_name"].value in custom_calls
        types = [value.type for value in (*operation.operands, *operation.results)]
        if cost <= _FEW and known and all(map(_is_small, types)):
            return ir.WalkResult.ADVANCE
        cost = _FEW + 1
        return ir.WalkResult.INTERRUPT

    function.walk(look)
    return cost


def _is_small(mlir_type: Any) -> bool:
    if not isinstance(mlir_type, ir.RankedTensorType):
        return str(mlir_type) == TOKEN_TYPE
    shape = mlir_type.shape
    # (An unknown dimension is below 0.)
    return min(shape, default=0) >= 0 and math.prod(shape) <= _SMALL


def canonical(module: Any) -> bytes:
    """Returns a parsed program's bytes without where in which file it was written.

    The module itself loses that too.
    """
    with _context():
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    return written(module)


def written(module: Any) -> bytes:
    """Returns a parsed program's bytes, as `XlaClient.compile` takes them."""
    with _context():
        buffer = io.BytesIO()
        module.operation.write_bytecode(file=buffer)
    return buffer.getvalue()


def _tensor(mlir_type: Any) -> TensorType:
    if str(mlir_type) == TOKEN_TYPE:
        return TensorType("token", ())
    ranked = ir.RankedTensorType(mlir_type)
    return TensorType(str(ranked.element_type), tuple(ranked.shape))


def _donated(function: Any, count: int) -> tuple[int, ...]:
    try:
        attributes = list(function.arg_attrs)
    except KeyError:  # written without any attribute
        return ()
    donors = {"jax.buffer_donor", "tf.aliasing_output"}
    return tuple(i for i in range(count) if any(entry.name in donors for entry in attributes[i]))
