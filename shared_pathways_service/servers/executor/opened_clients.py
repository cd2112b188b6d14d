"""The engine that computes: carries out a proxy's commands with XLA's clients."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib import _jax

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.array_bytes import flat
from shared_pathways_service.servers.devices.dtypes import TOKEN, TOKEN_DTYPE, dtype_of
from shared_pathways_service.servers.devices.interface import Executable
from shared_pathways_service.servers.devices.program_facts import facts_of
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.executor.exchange import cut, gathered, taken
from shared_pathways_service.servers.executor.executor_engine import BrokenClientError
from shared_pathways_service.servers.xla import xla_internals
from shared_pathways_service.servers.xla.coordination import Seat
from shared_pathways_service.servers.xla.host_platforms import CpuHost, HostPlatform
from shared_pathways_service.servers.xla.platforms import Platform
from shared_pathways_service.servers.xla.shardings import Placing, Placings
from shared_pathways_service.servers.xla.xla import XlaClient, warm_up

__all__ = ["OpenedClient", "XlaEngine"]

#: The most bytes of an array that a proxy fetches.
_MOST_BYTES = 1 << 30


class XlaEngine:
    """An `Engine` with devices of XLA's.

    Args:
      own_devices: The number of devices here.
      host: An address of this machine that other executors can reach.
      platform: What the devices are.
    """

    def __init__(self, own_devices: int, host: str, platform: HostPlatform | None = None) -> None:
        xla_internals.check()
        warm_up()
        self._own_devices = own_devices
        self._host = host
        self._platform = platform or CpuHost()

    def bound_collectives(self, seconds: int) -> None:
        """Bounds the waits in collectives, with the first client: XLA reads its flags once."""
        self._platform.bound_collectives(seconds)

    def open(self, command: pb.OpenClient) -> OpenedClient:
        """Opens a client, together with the other hosts that have devices of it."""
        if not 0 < len(command.own) <= self._own_devices:
            raise invalid_argument(
                f"{len(command.own)} devices of an executor of {self._own_devices}"
            )
        if not command.coordinator:
            return OpenedClient(command, self._platform.alone())
        seat = Seat(
            coordinator=command.coordinator,
            node=command.node,
            nodes=command.nodes,
            own=len(command.own),
            devices=len(command.devices),
            host=self._host,
        )
        return OpenedClient(command, self._platform.of_several(seat))


@dataclasses.dataclass(frozen=True, slots=True)
class _Spec:
    """An `ArraySpec`."""

    kind: int
    dtype: Any
    shape: tuple[int, ...]
    placing: Placing


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PlacedArray:
    """The pieces here of an array, with the client that they belong to."""

    client: OpenedClient
    spec: _Spec
    array: Any

    def piece(self) -> np.ndarray:
        """Returns its only piece, which must not be changed."""
        (piece,) = self.client._client.fetch(self.array)  # noqa: SLF001
        return piece


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A compiled program, and whether other hosts run it as well."""

    executable: Executable
    spans_hosts: bool


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """A program's way to run."""

    program: Program
    run: Callable[[list[Any]], list[Any]]
    results: Sequence[_Spec]
    is_quick: bool


class OpenedClient:
    """Some devices of the proxy, of which this process has all or a part.

    Attributes:
      spans_hosts: Whether others have a part.
    """

    def __init__(self, command: pb.OpenClient, platform: Platform) -> None:
        self.spans_hosts = bool(command.coordinator)
        self._own = frozenset(command.own)
        self._is_broken = False
        self._client = XlaClient(command.devices, platform)
        # Whatever their slices are: here all belong to this client.
        self._placings = Placings(
            [0] * (max(command.devices) + 1), make=lambda _ids, _slices: self._client
        )
        self._specs: dict[bytes, _Spec] = {}

    def placing(self, sharding: bytes) -> Placing:
        """Returns the place of a serialised xla.ifrt.ShardingProto."""
        return self._placings.from_wire(core_pb2.ShardingProto.FromString(sharding))

    # ---- arrays

    def put(self, spec: pb.ExecutorArraySpec, shards: Sequence[bytes | memoryview]) -> PlacedArray:
        """Makes an array of bytes."""
        found = self._spec(spec)
        shape = found.placing.shard_shape(found.shape)
        # (Not frombuffer, which refuses empty arrays.)
        pieces = [np.ndarray(shape, found.dtype, buffer=shard) for shard in shards]
        return PlacedArray(self, found, self._client.put(found, pieces))

    def fetch(self, array: PlacedArray) -> list[memoryview]:
        """Returns the bytes of the pieces here."""
        pieces = self._client.fetch(array.array)
        if sum(piece.nbytes for piece in pieces) > _MOST_BYTES:
            raise StatusError(
                Code.UNIMPLEMENTED, f"the pieces of an array on a host exceed {_MOST_BYTES} bytes"
            )
        return list(map(flat, pieces))

    def pieces(self, array: PlacedArray) -> list[memoryview]:
        """Returns the bytes of the pieces here, however many; also of an earlier client's array."""
        return list(map(flat, self._client.fetch(array.array)))

    def split(self, array: PlacedArray) -> list[PlacedArray]:
        """Returns an array of each piece here; they belong to the client of the whole."""
        owner, spec = array.client, array.spec
        device_ids = [i for i in spec.placing.device_ids if i in owner._own]  # noqa: SLF001
        shape = spec.placing.shard_shape(spec.shape)
        return [
            PlacedArray(owner, _Spec(spec.kind, spec.dtype, shape, owner._single(i, spec)), part)  # noqa: SLF001
            for i, part in zip(device_ids, self._client.parts(array.array), strict=True)
        ]

    def make(self, method: str, body: pb.MakeArray, parts: Sequence[PlacedArray]) -> PlacedArray:
        """Makes an array of pieces, by the client's method of this name.

        Methods for pieces of the client itself also take those of an earlier one.
        """
        spec = self._spec(body.spec)
        arrays = [part.array for part in parts]
        if method in {"join", "copy"} and any(part.client is not self for part in parts):
            if method == "copy":
                arrays = [np.array(array) for array in arrays]
            method = "adopt"
        return PlacedArray(self, spec, getattr(self._client, method)(spec, arrays))

    def reshard(
        self, body: pb.ReshardArray, held: OpenedClient, parts: Sequence[PlacedArray]
    ) -> PlacedArray:
        """Makes an array of the content of another, all of whose pieces `held` has here."""
        spec = self._spec(body.make.spec)
        place = held.placing(body.held)
        made = self._client.reshard(spec, place, [part.array for part in parts])
        return PlacedArray(self, spec, made)

    def offered(self, body: pb.OfferParts, arrays: Sequence[PlacedArray]) -> list[np.ndarray]:
        """Returns parts of arrays, which share their memory."""
        return [
            cut(array.piece(), part.region) for array, part in zip(arrays, body.parts, strict=True)
        ]

    def gather(self, body: pb.GatherArray, arrays: Sequence[PlacedArray]) -> PlacedArray:
        """Makes an array of parts of arrays here, and of those that other executors offer."""
        spec = self._spec(body.spec)
        shape = spec.placing.shard_shape(spec.shape)
        here = [array.piece() for array in arrays]
        shards = gathered(body, spec.dtype, shape, here, taken)
        return PlacedArray(self, spec, self._client.put(spec, shards))

    # ---- programs

    def compile(self, body: pb.CompileProgram) -> Program:
        """Compiles a program, or loads it."""
        options = _jax.CompileOptions.ParseFromString(body.options)
        devices = tuple(body.devices)
        self._client.assign(options, devices)
        make = self._client.load if body.is_serialized else self._client.compile
        return Program(make(body.text, devices, options), not self._own.issuperset(devices))

    def facts(self, program: Program) -> pb.ProgramFacts:
        """Returns what the proxy asks of every program."""
        return facts_of(program.executable)

    def description(
        self, program: Program, what: pb.DescribeProgram.What.ValueType
    ) -> bytes | None:
        """Returns what the proxy rarely asks of a program; None: there is none."""
        executable = program.executable
        if what == pb.DescribeProgram.COSTS:
            return json.dumps(dict(executable.costs())).encode()
        if what == pb.DescribeProgram.TEXT:
            return executable.text().encode()
        if what == pb.DescribeProgram.MEMORY:
            return executable.memory_report().SerializeToString()
        return executable.serialized()

    def runner(
        self, program: Program, results: Sequence[pb.ExecutorArraySpec], *, is_quick: bool
    ) -> Runner:
        """Prepares a program for runs."""
        specs = [self._spec(spec) for spec in results]
        return Runner(program, program.executable.runner(specs), specs, is_quick)

    def run(self, runner: Runner, arguments: Sequence[PlacedArray]) -> list[PlacedArray]:
        """Runs a program to its end; arguments of other clients of the same devices are adopted.

        Raises:
          BrokenClientError: This client has run no program over several hosts since one failed.
        """
        if runner.program.spans_hosts and self._is_broken:
            raise BrokenClientError(
                Code.UNAVAILABLE, "an earlier program over these hosts failed on one of them"
            )
        results = runner.run([self._at_home(argument) for argument in arguments])
        return [
            PlacedArray(self, spec, array)
            for spec, array in zip(runner.results, results, strict=True)
        ]

    def break_down(self) -> None:
        """Refuses programs over several hosts from now on."""
        self._is_broken = True

    def _at_home(self, array: PlacedArray) -> Any:
        if array.client is self:
            return array.array
        placing = self._placings.from_wire(array.spec.placing.proto)
        home = dataclasses.replace(array.spec, placing=placing)
        return self._client.adopt(home, self._client.parts(array.array))

    def _single(self, device_id: int, spec: _Spec) -> Placing:
        return self._placings.single(device_id, spec.placing.memory_kind)

    def _spec(self, message: pb.ExecutorArraySpec) -> _Spec:
        key = message.SerializeToString()
        found = self._specs.get(key)
        if found is None:
            found = _Spec(
                message.kind,
                TOKEN_DTYPE if message.kind == TOKEN else dtype_of(message.kind),
                tuple(message.shape),
                self.placing(message.sharding),
            )
            if len(self._specs) >= _REMEMBERED:
                self._specs.clear()
            self._specs[key] = found
        return found


#: The most specs that are remembered.
_REMEMBERED = 4096
