"""An engine of executors that computes nothing, to measure all that surrounds it.

It does not load XLA: an executor with it takes a fraction of the memory and of the time to start,
so that one machine has room for many.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.dtypes import dtype_of
from shared_pathways_service.servers.devices.interface import DEVICE_MEMORY
from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["NullEngine"]

#: The bytes of each piece of an array on this host.
_Pieces = Sequence[bytes]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Program:
    devices: int
    here: int
    spans_hosts: bool


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Runner:
    program: _Program
    results: Sequence[_Pieces]
    is_quick: bool


class NullEngine:
    """An `Engine` whose clients do not find each other, and need no devices."""

    def bound_collectives(self, seconds: int) -> None:
        """Does nothing: there are no collectives."""

    def open(self, command: pb.OpenClient) -> _NullClient:
        """Opens a client."""
        return _NullClient(command)


class _NullClient:
    """A `Client` that stores arrays as their bytes.

    It takes every program over several devices for one of one vector to another, split over all of
    them, and every other program for one of scalars. Results are zeros.
    """

    def __init__(self, command: pb.OpenClient) -> None:
        self.spans_hosts = bool(command.coordinator)
        self._own = frozenset(command.own)

    def put(self, _spec: pb.ExecutorArraySpec, shards: Sequence[bytes | memoryview]) -> _Pieces:
        """Makes an array of bytes."""
        return tuple(map(bytes, shards))

    def fetch(self, array: _Pieces) -> list[memoryview]:
        """Returns the bytes of the pieces here."""
        return [memoryview(piece) for piece in array]

    def pieces(self, array: _Pieces) -> list[memoryview]:
        """Returns the bytes of the pieces here."""
        return self.fetch(array)

    def split(self, array: _Pieces) -> Sequence[_Pieces]:
        """Returns an array of each piece here."""
        return [(piece,) for piece in array]

    def make(self, _method: str, _body: pb.MakeArray, parts: Sequence[_Pieces]) -> _Pieces:
        """Makes an array of pieces."""
        return tuple(piece for part in parts for piece in part)

    def reshard(self, _body: pb.ReshardArray, _held: Any, _parts: Sequence[_Pieces]) -> _Pieces:
        """Refuses: bytes alone have no shape."""
        raise _unsupported("reshards")

    def offered(self, _body: pb.OfferParts, _arrays: Sequence[_Pieces]) -> Sequence[Any]:
        """Refuses: bytes alone have no shape."""
        raise _unsupported("transfers to other hosts")

    def gather(self, _body: pb.GatherArray, _arrays: Sequence[_Pieces]) -> _Pieces:
        """Refuses: bytes alone have no shape."""
        raise _unsupported("transfers from other hosts")

    def compile(self, body: pb.CompileProgram) -> _Program:
        """Accepts any program."""
        here = len(self._own.intersection(body.devices))
        return _Program(len(body.devices), here, here < len(body.devices))

    def facts(self, program: _Program) -> pb.ProgramFacts:
        """Returns those of a program with one argument and one result."""
        layouts = pb.Layouts(layouts=["{0}" if program.devices > 1 else "{}"])
        found = pb.ProgramFacts(
            name="null",
            result_memory_kinds=[DEVICE_MEMORY],
            parameter_layouts=layouts,
            result_layouts=layouts,
        )
        if program.devices > 1:
            split = xla_pb2.OpSharding(
                type=xla_pb2.OpSharding.OTHER,
                tile_assignment_dimensions=[program.devices],
                iota_reshape_dims=[program.devices],
                iota_transpose_perm=[0],
            ).SerializeToString()
            found.parameters.shardings.append(split)
            found.results.shardings.append(split)
        return found

    def description(
        self, _program: _Program, _what: pb.DescribeProgram.What.ValueType
    ) -> bytes | None:
        """Has none."""
        return None

    def runner(
        self, program: _Program, results: Sequence[pb.ExecutorArraySpec], *, is_quick: bool
    ) -> _Runner:
        """Prepares the results of all runs."""
        return _Runner(program, [_zeros(spec, program) for spec in results], is_quick)

    def run(self, runner: _Runner, _arguments: Sequence[_Pieces]) -> Sequence[_Pieces]:
        """Returns the results."""
        return runner.results

    def break_down(self) -> None:
        """Does nothing: no program fails."""


def _zeros(spec: pb.ExecutorArraySpec, program: _Program) -> _Pieces:
    size = math.prod(spec.shape) // program.devices * dtype_of(spec.kind).itemsize
    return (bytes(size),) * program.here


def _unsupported(what: str) -> StatusError:
    return StatusError(Code.UNIMPLEMENTED, f"{what}: this executor's engine computes nothing")
