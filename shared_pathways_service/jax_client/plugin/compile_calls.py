"""Serves functions of this process that XLA calls while it compiles programs for a proxy.

JAX lowers `jax.debug.inspect_array_sharding` and `custom_partitioning` to custom calls with an
address of this process, or with a key of its own registry of functions. Neither has a meaning in a
proxy. So each is replaced by an index, and the proxy calls the function of that index over the
stream of callbacks. The functions run on the compiling thread, as JAX's do, with its configuration
and meshes.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import io
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import callback_wire as wire

__all__ = ["Served", "bytecode_of", "copied", "install", "may_call", "take", "users"]

_INSPECT, _PARTITION = "InspectSharding", "CustomSPMDPartitioning"
_TARGET, _CONFIG = "call_target_name", "backend_config"
#: Functions by the address that JAX puts into the program.
_inspected: weakref.WeakValueDictionary[bytes, Callable[[Any], object]] = (
    weakref.WeakValueDictionary()
)


@functools.cache
def install() -> None:
    """Records the functions of which JAX gives out addresses."""
    xla_client = _xla_client()
    original = getattr(xla_client, "encode_inspect_sharding_callback", None)
    if original is None:
        return

    @functools.wraps(original)
    def encode(function: Any) -> bytes:
        address: bytes = original(function)
        _inspected[address] = function
        return address

    xla_client.encode_inspect_sharding_callback = encode


def may_call(module: Any) -> bool:
    """Whether a program seems to call functions while it is compiled."""
    if not _inspected and not _partitionings():
        return False
    data = bytecode_of(module)
    # (Walking over all operations takes far longer.)
    return any(name.encode() in data for name in (_INSPECT, _PARTITION))


def copied(module: Any) -> Any:
    """Returns a copy of a module."""
    with module.context:
        return _ir().Module.parse(bytecode_of(module))


def users(function: Any) -> Callable[..., Any]:
    """Returns the user's functions, or JAX's wrappers of them, inside the result of `take`."""
    first = function.args[0]
    found: Callable[..., Any] = getattr(first, "partition", first)
    return found


def take(module: Any, first: int) -> list[Callable[[Any], Sequence[Any]]]:
    """Replaces calls that have a meaning only in this process by indices, from `first` up.

    Returns the functions for the proxy, each with a CompileCall as bytes in a numpy array.
    """
    ir = _ir()
    found: list[Callable[[Any], Sequence[Any]]] = []

    def look(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            attributes = operation.attributes
            name = attributes[_TARGET].value
            is_known = name in (_INSPECT, _PARTITION)
            # (If the function no longer exists, the proxy refuses the call by name.)
            if is_known and (function := _function(name, attributes[_CONFIG].value_bytes)):
                attributes[_CONFIG] = ir.StringAttr.get(f"sps {first + len(found)}")
                found.append(function)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(look)
    return found


def bytecode_of(module: Any) -> bytes:
    """Returns the bytecode of a program."""
    data = io.BytesIO()
    with module.context:
        module.operation.write_bytecode(file=data)
    return data.getvalue()


def _function(name: str, key: bytes) -> Callable[[Any], Sequence[Any]] | None:
    function = (_inspected if name == _INSPECT else _partitionings()).get(key)
    if function is None:
        return None
    if name == _INSPECT:
        return functools.partial(_inspect, function)
    # (JAX's registry keeps it as long as the program is being compiled.)
    return functools.partial(_partition, function, key)


def _inspect(function: Callable[[Any], object], raw: Any) -> Sequence[Any]:
    call = wire.CompileCall(raw.tobytes())
    function(_sharding(call.operands[0].sharding))
    return [_array(b"")]


def _partition(_kept: object, key: bytes, raw: Any) -> Sequence[Any]:
    """Answers XLA's request with JAX's own functions."""
    call = wire.CompileCall(raw.tobytes())
    shapes, shardings = _shapes(call.operands), [_sharding(o.sharding) for o in call.operands]
    results = _shapes(call.results)
    shape = results[0] if len(results) == 1 else _xla_client().Shape.tuple_shape(results)
    chosen = [_sharding(one.sharding) for one in call.results]
    program, operands = b"", []
    if call.kind == wire.INFER:
        made = _jaxs("infer_sharding_from_operands")(shapes, shardings, shape, key)
    elif call.kind == wire.PROPAGATE:
        made = _jaxs("propagate_user_sharding")(_joined(chosen, shape), shape, key)
    else:
        wanted = _joined(chosen, shape)
        bytecode, taken, made = _jaxs("partition")(shapes, shardings, shape, wanted, key)
        program, operands = _portable(bytecode), [_serialized(one) for one in taken]
    return [_array(wire.compile_answer(program, operands, _parts(made, shape)))]


def _jaxs(name: str) -> Callable[..., Any]:
    module = importlib.import_module("jax._src.custom_partitioning")
    function: Callable[..., Any] = getattr(module, f"_custom_partitioning_{name}")
    return function


def _shapes(values: Sequence[wire.CompileValue]) -> list[Any]:
    make = _xla_client().Shape.array_shape
    return [make(wire.dtype_of(value.dtype), value.shape) for value in values]


def _joined(shardings: list[Any], shape: Any) -> Any:
    if not shape.is_tuple():
        return shardings[0]
    return _xla_client().HloSharding.tuple_sharding(shape, shardings)


def _parts(sharding: Any, shape: Any) -> list[bytes]:
    parts = sharding.tuple_elements() if shape.is_tuple() else [sharding]
    return [_serialized(part) for part in parts]


def _sharding(serialized: bytes | None) -> Any:
    if serialized is None:
        return None
    message = _xla_client().OpSharding()
    message.ParseFromString(serialized)
    return _xla_client().HloSharding.from_proto(message)


def _serialized(sharding: Any) -> bytes:
    data: bytes = sharding.to_proto().SerializeToString()
    return data


def _portable(program: bytes) -> bytes:
    """Returns a program in a form for proxies of older or newer releases."""
    hlo: Any = importlib.import_module("jaxlib.mlir.dialects.stablehlo")
    jaxlib: Any = importlib.import_module("jaxlib._jax")
    version = hlo.get_version_from_compatibility_requirement(
        hlo.StablehloCompatibilityRequirement.WEEK_4
    )
    # (Meshes are written out; JAX writes its own programs for a proxy in this way.)
    portable: bytes = jaxlib.mlir.serialize_portable_artifact(program, version, True)
    return portable


def _array(data: bytes) -> Any:
    import numpy as np  # noqa: PLC0415 - other programs need not pay for it

    return np.frombuffer(data, np.uint8)


def _partitionings() -> Any:
    """Returns JAX's registry of functions by key; empty if it is not in use."""
    return getattr(sys.modules.get("jax._src.custom_partitioning"), "_sharding_callbacks", {})


def _xla_client() -> Any:
    return importlib.import_module("jaxlib.xla_client")


def _ir() -> Any:
    return importlib.import_module("jaxlib.mlir.ir")


class _Job:
    """One call that waits for the compiling thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:  # noqa: BLE001 - raised where the call is answered
            self._error = error
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._done.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def result(self) -> Any:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result


class Served:
    """Runs functions on the compiling thread, which waits for the proxy meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    def here(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wraps a function for other threads, so that it runs on the thread that calls `run`."""

        def call(argument: Any) -> Any:
            job = _Job(functools.partial(function, argument))
            with self._lock:
                if self._is_over:
                    raise RuntimeError("the compilation has ended")
                self._jobs.put(job)
            return job.result()

        return call

    def run(self, work: Callable[[], Any]) -> Any:
        """Runs the work on another thread, and serves functions until it returns its result."""
        compiling = _Job(work)
        context = contextvars.copy_context()

        def run() -> None:
            try:
                context.run(compiling.run)
            finally:
                self._jobs.put(None)

        try:
            thread = threading.Thread(target=run, name="sps-compile", daemon=True)
            thread.start()
            while (job := self._jobs.get()) is not None:
                job.run()
            thread.join()
        finally:
            self._end()
        return compiling.result()

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
        while not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                job.fail(RuntimeError("the compilation has ended"))
