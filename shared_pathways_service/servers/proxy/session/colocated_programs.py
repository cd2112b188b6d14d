"""Compiles and runs programs that are functions of `jax.experimental.colocated_python`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from shared_pathways_service.protocol.ifrt import core_pb2, xla_pb2
from shared_pathways_service.servers.devices.dtypes import STRING, STRING_DTYPE
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.colocated.python_process import PythonProcess
from shared_pathways_service.servers.proxy.colocated.strings import STRINGS
from shared_pathways_service.servers.proxy.engine.compiled_program import Parameter, Program
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.session.other_programs import shown_name
from shared_pathways_service.servers.proxy.session.session import Session
from shared_pathways_service.servers.xla.shardings import Placing

__all__ = ["colocated_program"]

#: How many calls of a session may wait while later programs run: each has a thread for each slice.
_MOST_ASIDE = 64


class _Running(threading.local):
    """The operation whose work a thread does."""

    operation: Operation | None = None


_running = _Running()


class ColocatedFunction:
    """An executable that calls a function in the session's process, as callbacks of a program do.

    Args:
      number: The number of the function.
      name: Its name.
      pickled: The function, as JAX's client pickled it.
      device_ids: The devices of all arguments and results.
      arguments: What it takes.
      results: What it returns.
      process: Calls it.
    """

    fingerprint = b""
    code_bytes = 0
    never_wait = False

    def __init__(
        self,
        number: int,
        name: str,
        pickled: bytes,
        *,
        device_ids: Sequence[int],
        arguments: Sequence[Spec],
        results: Sequence[Spec],
        process: PythonProcess,
    ) -> None:
        self.name = name
        self.memory = xla_pb2.CompiledMemoryStatsProto()
        self._number = number
        self._pickled = pickled
        self._device_ids = device_ids
        self._arguments = tuple(arguments)
        self._results = tuple(results)
        self._process = process
        self._shown = f"colocated_python function {shown_name(name)!r}"

    def run(self, operation: Operation, work: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Calls the function as a part of an operation, whose end abandons the call."""
        _running.operation = operation
        try:
            return work()
        finally:
            _running.operation = None

    def call(self, arrays: Sequence[Any]) -> list[Any]:
        """Calls the function; returns the arrays of its results."""
        operation = _running.operation
        assert operation is not None, "called by `run`"
        buffers = [
            np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            for spec, array in zip(self._arguments, arrays, strict=True)
            for piece in spec.placing.client.fetch(array)
        ]
        made = self._process.put(
            self._number,
            self._shown,
            self._pickled,
            device_ids=self._device_ids,
            buffers=buffers,
            sizes=[size for spec in self._results for size in _sizes(spec)],
        )
        # Programs that do not depend on it continue; other functions are called after it.
        if self._process.outstanding <= _MOST_ASIDE:
            operation.step_aside()
        if not operation.add_callback(lambda: self._process.abandon(made)):
            self._process.abandon(made)
        try:
            pieces = iter(made.result())
        except futures.CancelledError:
            raise StatusError(Code.CANCELLED, f"{self._shown} was not called") from None
        return [
            _array(spec, [next(pieces) for _ in spec.placing.device_ids]) for spec in self._results
        ]

    def drop(self) -> None:
        """Frees the function, once no operation uses it."""
        self._process.drop(self._number)

    # ---- what an executable tells

    def parameter_shardings(self) -> None:
        """Tells nothing: the client knows them."""

    def result_shardings(self) -> None:
        """Tells nothing: the client knows them."""

    def result_memory_kinds(self) -> list[list[str]]:
        """Returns the memory of each result."""
        return [[spec.placing.memory_kind for spec in self._results]]

    def parameter_layouts(self) -> list[str]:
        """Raises: Python has no layouts."""
        raise _not_xla("layouts")

    def result_layouts(self) -> list[str]:
        """Raises: Python has no layouts."""
        raise _not_xla("layouts")

    def aliased_parameters(self) -> frozenset[int]:
        """Returns none."""
        return frozenset()

    def memory_report(self) -> xla_pb2.CompiledMemoryStatsProto:
        """Returns zeros."""
        return self.memory

    def costs(self) -> dict[str, object]:
        """Raises: XLA does not estimate Python."""
        raise _not_xla("estimates of costs")

    def text(self) -> str:
        """Raises: there is no text of XLA."""
        raise _not_xla("text")

    def serialized(self) -> None:
        """Returns none."""

    def runner(self, _results: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        """Returns what calls the function."""
        return self.call

    def starter(self, _results: Sequence[Any]) -> None:
        """Returns none: it runs to its end."""


def colocated_program(
    session: Session, custom: core_pb2.CustomCallProgramProto, number: int
) -> Program:
    """Makes the program of a function, which is unpickled when it is first called."""
    placings = session.engine.placings
    device_ids = tuple(custom.devices.device_ids)
    placings.check(device_ids)
    if not device_ids:
        raise invalid_argument(f"colocated_python function {custom.name!r} has no devices")
    arguments = [session.spec(s.dtype, s.shape, s.sharding) for s in custom.input_specs]
    results = [_result(session, spec) for spec in custom.output_specs]
    if any(spec.placing.device_ids != device_ids for spec in (*arguments, *results)):
        raise invalid_argument(
            f"colocated_python function {custom.name!r} runs on devices {device_ids}, and has "
            "arguments or results on others"
        )
    function = ColocatedFunction(
        number,
        custom.name,
        custom.serialized_program_text,
        device_ids=device_ids,
        arguments=arguments,
        results=results,
        process=session.python_process(),
    )
    slices = placings.slices(device_ids)
    return Program(
        name=custom.name,
        executable=function,
        client=placings.client(slices),
        device_ids=device_ids,
        slices=slices,
        results=tuple(results),
        result_bytes=tuple(0 if s.kind == STRING else s.shard_bytes() for s in results),
        donated=frozenset(),
        parameters=tuple(
            Parameter(s.kind, s.dtype, s.placing.shard_shape(s.shape)) for s in arguments
        ),
        extra_bytes=0,
        run=function.call,
        start=None,
        callbacks=function,
        drop=function.drop,
    )


def _result(session: Session, spec: core_pb2.ArraySpecProto) -> Spec:
    if spec.dtype.kind != STRING:
        return session.spec(spec.dtype, spec.shape, spec.sharding)
    if spec.shape.dims:
        raise StatusError(Code.UNIMPLEMENTED, "arrays of several strings are not supported")
    place = session.engine.placings.from_wire(spec.sharding)
    placing = Placing(
        place.device_ids,
        place.slices,
        STRINGS,
        proto=place.proto,
        sharding=place.sharding,
        memory_kind=place.memory_kind,
        op_sharding=place.op_sharding,
        shard=place.shard,
    )
    return Spec(STRING, STRING_DTYPE, (), placing)


def _sizes(spec: Spec) -> list[int | None]:
    """Returns the bytes of each piece on the host; None for a string."""
    count = len(spec.placing.device_ids)
    if spec.kind == STRING:
        return [None] * count
    shape = spec.placing.shard_shape(spec.shape)
    return [math.prod(shape) * spec.dtype.itemsize] * count


def _array(spec: Spec, pieces: Sequence[bytearray]) -> Any:
    if spec.kind == STRING:
        return [bytes(piece) for piece in pieces]
    shape = spec.placing.shard_shape(spec.shape)
    arrays = [np.frombuffer(piece, spec.dtype).reshape(shape) for piece in pieces]
    return spec.placing.client.put(spec, arrays)


def _not_xla(what: str) -> StatusError:
    return StatusError(Code.UNIMPLEMENTED, f"a colocated_python function has no {what}")
