"""Carries out a proxy's commands on the devices of one client."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib import _jax

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.dtypes import dtype_of
from shared_pathways_service.servers.devices.interface import Executable
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.xla.coordination import CpuOfSeveral
from shared_pathways_service.servers.xla.platforms import CPU
from shared_pathways_service.servers.xla.shardings import Placing, Placings
from shared_pathways_service.servers.xla.xla import XlaClient

__all__ = ["HeldSpec", "OpenedClient", "Runner", "description", "facts"]

#: The most bytes of one report: protobuf's limit is 2 GiB.
_MOST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class HeldSpec:
    """An `ArraySpec`."""

    kind: int
    dtype: Any
    shape: tuple[int, ...]
    placing: Placing


@dataclasses.dataclass(frozen=True, slots=True)
class Runner:
    """A program with the specs of its results."""

    run: Callable[[list[Any]], list[Any]]
    results: Sequence[HeldSpec]


class OpenedClient:
    """Some devices of the proxy, of which this process has all or a part."""

    def __init__(self, command: pb.OpenClient, own_devices: int, host: str) -> None:
        if not 0 < len(command.own) <= own_devices:
            raise invalid_argument(f"{len(command.own)} devices of an executor of {own_devices}")
        platform = (
            CpuOfSeveral(command.coordinator, command.node, command.nodes, len(command.own), host)
            if command.coordinator
            else CPU
        )
        self._client = XlaClient(command.devices, platform)
        # Whatever their slices are: here all belong to this client.
        self._placings = Placings(
            [0] * (max(command.devices) + 1), make=lambda _ids, _slices: self._client
        )
        self._specs: dict[bytes, HeldSpec] = {}

    def placing(self, sharding: bytes) -> Placing:
        """Returns the place of a serialised xla.ifrt.ShardingProto."""
        return self._placings.from_wire(core_pb2.ShardingProto.FromString(sharding))

    def put(self, body: pb.PutArray) -> tuple[HeldSpec, Any]:
        """Makes an array of bytes."""
        spec = self._spec(body.spec)
        shape = spec.placing.shard_shape(spec.shape)
        # (Not frombuffer, which refuses empty arrays.)
        shards = [np.ndarray(shape, spec.dtype, buffer=data) for data in body.shards]
        return spec, self._client.put(spec, shards)

    def fetch(self, array: Any) -> list[bytes]:
        """Returns the bytes of the pieces here."""
        pieces = self._client.fetch(array)
        if sum(piece.nbytes for piece in pieces) > _MOST_BYTES:
            raise StatusError(
                Code.UNIMPLEMENTED, f"the pieces of an array on a host exceed {_MOST_BYTES} bytes"
            )
        return [np.ascontiguousarray(piece).tobytes() for piece in pieces]

    def split(self, array: Any) -> list[Any]:
        """Returns an array of each piece here."""
        return list(self._client.parts(array))

    def make(self, method: str, body: pb.MakeArray, parts: Sequence[Any]) -> tuple[HeldSpec, Any]:
        """Makes an array of pieces, by the client's method of this name."""
        spec = self._spec(body.spec)
        return spec, getattr(self._client, method)(spec, parts)

    def reshard(
        self, body: pb.MakeArray, held: Placing, parts: Sequence[Any]
    ) -> tuple[HeldSpec, Any]:
        """Makes an array of the content of another, all of whose pieces are here."""
        spec = self._spec(body.spec)
        return spec, self._client.reshard(spec, held, parts)

    def compile(self, body: pb.CompileProgram) -> Executable:
        """Compiles a program, or loads it."""
        options = _jax.CompileOptions.ParseFromString(body.options)
        devices = tuple(body.devices)
        self._client.assign(options, devices)
        make = self._client.load if body.is_serialized else self._client.compile
        return make(body.text, devices, options)

    def runner(self, executable: Executable, results: Sequence[pb.ExecutorArraySpec]) -> Runner:
        """Prepares a program for runs."""
        specs = [self._spec(spec) for spec in results]
        return Runner(executable.runner(specs), specs)

    def _spec(self, message: pb.ExecutorArraySpec) -> HeldSpec:
        key = message.SerializeToString()
        found = self._specs.get(key)
        if found is None:
            found = HeldSpec(
                message.kind,
                dtype_of(message.kind),
                tuple(message.shape),
                self.placing(message.sharding),
            )
            if len(self._specs) >= _REMEMBERED:
                self._specs.clear()
            self._specs[key] = found
        return found


#: The most specs that are remembered.
_REMEMBERED = 4096


def facts(executable: Executable) -> pb.ProgramFacts:
    """Returns what the proxy asks of every program."""
    found = pb.ProgramFacts(
        name=executable.name,
        fingerprint=executable.fingerprint,
        memory=executable.memory.SerializeToString(),
        code_bytes=executable.code_bytes,
        aliased=sorted(executable.aliased_parameters()),
        parameter_layouts=_layouts(executable.parameter_layouts),
        result_layouts=_layouts(executable.result_layouts),
    )
    (kinds,) = executable.result_memory_kinds() or ([],)
    found.result_memory_kinds.extend(kinds)
    for field, shardings in (
        (found.parameters, executable.parameter_shardings()),
        (found.results, executable.result_shardings()),
    ):
        if shardings is not None:
            field.SetInParent()
            field.shardings.extend(shardings)
    return found


def _layouts(get: Callable[[], list[str]]) -> pb.Layouts:
    try:
        return pb.Layouts(layouts=get())
    except Exception as error:  # noqa: BLE001 - XLA's, for tokens; raised again in the proxy
        return pb.Layouts(error=str(error) or type(error).__name__)


def description(executable: Executable, what: pb.DescribeProgram.What.ValueType) -> bytes | None:
    """Returns what the proxy rarely asks of a program; None: there is none."""
    if what == pb.DescribeProgram.COSTS:
        return json.dumps(dict(executable.costs())).encode()
    if what == pb.DescribeProgram.TEXT:
        return executable.text().encode()
    if what == pb.DescribeProgram.MEMORY:
        return executable.memory_report().SerializeToString()
    return executable.serialized()
