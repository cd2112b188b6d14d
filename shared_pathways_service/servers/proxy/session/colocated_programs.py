"""Compiles and runs programs that are functions of `jax.experimental.colocated_python`."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Protocol

import numpy as np

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import core_pb2, xla_pb2
from shared_pathways_service.servers.colocated.python_process import PythonProcess
from shared_pathways_service.servers.devices.dtypes import STRING, STRING_DTYPE
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.colocated.executor_python import (
    ExecutorFunction,
    ExecutorPython,
    RemoteCall,
)
from shared_pathways_service.servers.proxy.colocated.strings import STRINGS
from shared_pathways_service.servers.proxy.engine.compiled_program import Parameter, Program
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.executors.awaiting import result_of
from shared_pathways_service.servers.proxy.executors.executor_client import ExecutorClient
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink
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


class Call(Protocol):
    """A call that has begun."""

    def results(self) -> list[Any]:
        """Waits for its end, and returns the arrays of its results."""

    def abandon(self) -> None:
        """Ends the call, and the process if it runs the call."""


@dataclasses.dataclass(frozen=True, slots=True)
class _CallHere:
    """A `Call` beside the proxy."""

    process: PythonProcess
    made: futures.Future[list[bytearray]]
    specs: Sequence[Spec]

    def results(self) -> list[Any]:
        """Puts the results on their devices."""
        made = result_of(self.made)
        pieces = iter(made)
        return [_array(s, [next(pieces) for _ in s.placing.device_ids]) for s in self.specs]

    def abandon(self) -> None:
        """Ends the call."""
        self.process.abandon(self.made)


@dataclasses.dataclass(frozen=True, slots=True)
class _Here:
    """Calls a function beside the proxy, which receives its arguments and results."""

    number: int
    name: str
    pickled: bytes
    device_ids: Sequence[int]
    arguments: Sequence[Spec]
    results: Sequence[Spec]
    process: PythonProcess

    def begin(self, arrays: Sequence[Any]) -> tuple[_CallHere, int]:
        """Calls it; returns the call, and how many there are in its process."""
        buffers = [
            np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            for spec, array in zip(self.arguments, arrays, strict=True)
            for piece in spec.placing.client.fetch(array)
        ]
        made = self.process.put(
            self.number,
            self.name,
            self.pickled,
            device_ids=self.device_ids,
            buffers=buffers,
            sizes=[size for spec in self.results for size in _sizes(spec)],
        )
        return _CallHere(self.process, made, self.results), self.process.outstanding

    def drop(self) -> None:
        """Frees it."""
        self.process.drop(self.number)


@dataclasses.dataclass(frozen=True, slots=True)
class _There:
    """Calls a function on the executor that has all its devices."""

    client: ExecutorClient
    function: ExecutorFunction
    python: ExecutorPython

    def link(self, device_ids: Sequence[int]) -> ExecutorLink | None:
        """Returns the executor of these devices; None: there are several."""
        links = self.client.present().hosts(device_ids)
        return links[0] if len(links) == 1 else None

    def begin(self, link: ExecutorLink, arrays: Sequence[Any]) -> tuple[RemoteCall, int]:
        """Calls it; returns the call, and how many there are in the session."""
        client = self.client.present().number
        return self.python.put(self.function, link, client, arrays), self.python.outstanding

    def drop(self) -> None:
        """Frees it."""
        self.function.drop()


class ColocatedFunction:
    """An executable that calls a function in a process, as callbacks of a program do.

    That is a process of the executor that has all its devices, or one beside the proxy.

    Args:
      name: Its name.
      device_ids: The devices of all arguments and results.
      here: Calls it beside the proxy.
      there: Calls it on an executor; None: there are none.
    """

    fingerprint = b""
    code_bytes = 0
    never_wait = False

    def __init__(
        self, name: str, device_ids: Sequence[int], here: _Here, there: _There | None
    ) -> None:
        self.name = name
        self.memory = xla_pb2.CompiledMemoryStatsProto()
        self._shown = _shown(name)
        self._device_ids = device_ids
        self._here = here
        self._there = there

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
        link = None if self._there is None else self._there.link(self._device_ids)
        made: Call
        if self._there is None or link is None:
            made, outstanding = self._here.begin(arrays)
        else:
            made, outstanding = self._there.begin(link, arrays)
        # Programs that do not depend on it continue; other functions are called after it.
        if outstanding <= _MOST_ASIDE:
            operation.step_aside()
        if not operation.add_callback(made.abandon):
            made.abandon()
        try:
            return made.results()
        except futures.CancelledError:
            raise StatusError(Code.CANCELLED, f"{self._shown} was not called") from None

    def drop(self) -> None:
        """Frees the function, once no operation uses it."""
        self._here.drop()
        if self._there is not None:
            self._there.drop()

    # ---- what an executable tells

    def parameter_shardings(self) -> None:
        """Tells nothing: the client knows them."""

    def result_shardings(self) -> None:
        """Tells nothing: the client knows them."""

    def result_memory_kinds(self) -> list[list[str]]:
        """Returns the memory of each result."""
        return [[spec.placing.memory_kind for spec in self._here.results]]

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

    def starter(self, _results: Sequence[Any], *, is_quick: bool) -> None:
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
    here = _Here(
        number,
        _shown(custom.name),
        custom.serialized_program_text,
        device_ids,
        arguments,
        results,
        session.python.here,
    )
    slices = placings.slices(device_ids)
    client = placings.client(slices)
    there = _there(session, here, client) if isinstance(client, ExecutorClient) else None
    function = ColocatedFunction(custom.name, device_ids, here, there)
    return Program(
        name=custom.name,
        executable=function,
        client=client,
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


def _there(session: Session, here: _Here, client: ExecutorClient) -> _There:
    body = pb.MakePython(
        name=here.name,
        pickled=here.pickled,
        python=session.python.on_executors.number,
        device_count=len(session.engine.devices),
        devices=here.device_ids,
        piece_bytes=[-1 if (size := _sizes(s)[0]) is None else size for s in here.results],
    )
    return _There(client, ExecutorFunction(body, here.results), session.python.on_executors)


def _shown(name: str) -> str:
    return f"colocated_python function {shown_name(name)!r}"


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
