"""Compiled programs on executors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.interface import ArraySpec
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink, new_number
from shared_pathways_service.servers.proxy.executors.remote_arrays import RemoteArray, spec_message

__all__ = ["RemoteExecutable"]


class _Client(Protocol):
    number: int

    def ask(self, links: Sequence[ExecutorLink], **body: Any) -> list[pb.ExecutorReport]:
        """Sends a command to executors, and waits for their reports."""

    def links_of(self, spec: ArraySpec) -> tuple[ExecutorLink, ...]:
        """Returns the executor of each piece."""


class RemoteExecutable:
    """An `Executable`, compiled on each executor that has devices of it.

    Args:
      client: Its client.
      links: The executors.
      number: Its number there.
      facts: What the first of them says of it.
    """

    def __init__(
        self,
        client: _Client,
        links: Sequence[ExecutorLink],
        number: int,
        facts: pb.ProgramFacts,
    ) -> None:
        self._client = client
        self._links = links
        self._number = number
        self._facts = facts
        self.name = facts.name
        self.fingerprint = facts.fingerprint
        self.memory = xla_pb2.CompiledMemoryStatsProto.FromString(facts.memory)
        self.code_bytes = facts.code_bytes

    def __del__(self) -> None:
        """Frees the program."""
        for link in self._links:
            link.free("programs", self._number)

    def parameter_shardings(self) -> list[bytes] | None:
        """Returns the shardings in tiles."""
        facts = self._facts
        return list(facts.parameters.shardings) if facts.HasField("parameters") else None

    def result_shardings(self) -> list[bytes] | None:
        """Returns the shardings in tiles."""
        facts = self._facts
        return list(facts.results.shardings) if facts.HasField("results") else None

    def result_memory_kinds(self) -> list[list[str]]:
        """Returns the memory of each result, for the program's only module."""
        return [list(self._facts.result_memory_kinds)]

    def parameter_layouts(self) -> list[str]:
        """Returns XLA's texts."""
        return _layouts(self._facts.parameter_layouts)

    def result_layouts(self) -> list[str]:
        """Returns XLA's texts."""
        return _layouts(self._facts.result_layouts)

    def aliased_parameters(self) -> frozenset[int]:
        """Returns the indices of arguments whose memory the program takes for its results."""
        return frozenset(self._facts.aliased)

    def memory_report(self) -> xla_pb2.CompiledMemoryStatsProto:
        """Asks an executor for the assignment of buffers."""
        described = self._described(pb.DescribeProgram.MEMORY)
        return xla_pb2.CompiledMemoryStatsProto.FromString(described or b"")

    def costs(self) -> Mapping[str, object]:
        """Asks an executor for XLA's estimates."""
        costs: Mapping[str, object] = json.loads(self._described(pb.DescribeProgram.COSTS) or b"{}")
        return costs

    def text(self) -> str:
        """Asks an executor for the optimised program."""
        return (self._described(pb.DescribeProgram.TEXT) or b"").decode()

    def serialized(self) -> bytes | None:
        """Asks an executor for the form for `ExecutorClient.load`."""
        return self._described(pb.DescribeProgram.SERIALIZED)

    def runner(self, results: Sequence[ArraySpec]) -> Callable[[list[Any]], list[Any]]:
        """Returns a function that runs the program on all its executors, to its end."""
        client = self._client
        links = self._links
        runner = _Runner(client, links, self, results)
        aliased = self.aliased_parameters()
        kinds = [
            (client.links_of(spec), spec.dtype, spec.placing.shard_shape(spec.shape))
            for spec in results
        ]

        def run(arguments: list[Any]) -> list[Any]:
            made = [RemoteArray(client.number, on, dtype, shape) for on, dtype, shape in kinds]
            body = pb.RunProgram(
                runner=runner.number,
                arguments=[argument.number for argument in arguments],
                results=[array.number for array in made],
            )
            client.ask(links, run=body)
            for index in aliased:
                arguments[index].is_deleted = True
            return made

        return run

    def _described(self, what: pb.DescribeProgram.What.ValueType) -> bytes | None:
        describe = pb.DescribeProgram(program=self._number, what=what)
        (report,) = self._client.ask(self._links[:1], describe=describe)
        return report.description if report.HasField("description") else None

    @property
    def number(self) -> int:
        """Its number in executors."""
        return self._number


class _Runner:
    """A program's way to run, on executors."""

    def __init__(
        self,
        client: _Client,
        links: Sequence[ExecutorLink],
        program: RemoteExecutable,
        results: Sequence[ArraySpec],
    ) -> None:
        self.number = new_number()
        self._links = links
        # (It lives as long as its runner.)
        self._program = program
        make = pb.MakeRunner(
            program=program.number,
            runner=self.number,
            results=[spec_message(spec) for spec in results],
        )
        client.ask(links, make_runner=make)

    def __del__(self) -> None:
        for link in self._links:
            link.free("runners", self.number)


def _layouts(layouts: pb.Layouts) -> list[str]:
    if layouts.error:
        raise RuntimeError(layouts.error)
    return list(layouts.layouts)
