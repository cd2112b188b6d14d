"""Compiled programs on executors."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.bound_work import Placement, bound_placements
from shared_pathways_service.servers.devices.interface import ArraySpec, Start
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.executor_link import (
    ExecutorLink,
    new_number,
)
from shared_pathways_service.servers.proxy.executors.executor_times import (
    ExecutorTimes,
    digest_of,
)
from shared_pathways_service.servers.proxy.executors.present_client import PresentClient
from shared_pathways_service.servers.proxy.executors.remote_arrays import RemoteArray, spec_message

__all__ = ["Client", "KnownProgram", "RemoteExecutable"]


class Client(Protocol):
    """Some devices of executors."""

    def present(self) -> PresentClient:
        """Returns the client in executors; opens it first if there is none."""

    def ask(
        self, client: int, links: Sequence[ExecutorLink], **body: Any
    ) -> list[pb.ExecutorReport]:
        """Sends a command to executors, and waits for their reports."""

    def is_on(self, links: Sequence[ExecutorLink]) -> bool:
        """Whether this is one executor, and has all devices now."""

    @property
    def times(self) -> ExecutorTimes | None:
        """Gets the times of runs; None: they are not compared."""


class _Compiled:
    """A program that executors have compiled; they drop it when nothing refers to this.

    Attributes:
      present: The client that it belongs to.
      client: The number of that.
      links: The executors.
      number: Its number there.
      facts: What the first of them says of it.
      devices: The number of its devices on each of them.
      digest: Its `digest_of`.
    """

    def __init__(self, client: Client, body: pb.CompileProgram) -> None:
        self.present = client.present()
        self.client = self.present.number
        self.links = self.present.hosts(body.devices)
        self.number = new_number()
        command = pb.CompileProgram()
        command.CopyFrom(body)
        command.program = self.number
        # (If some have compiled it and others failed, it is freed on all.)
        self.facts = client.ask(self.client, self.links, compile=command)[0].facts
        self.devices = self.present.devices_of(body.devices)
        self.digest = digest_of(body) if client.times is not None else b""

    def __del__(self) -> None:
        for link in getattr(self, "links", ()):
            link.free("programs", self.number)


@dataclasses.dataclass(frozen=True, slots=True)
class KnownProgram:
    """What is known of a program, and how many executors have devices of it."""

    facts: pb.ProgramFacts
    hosts: int


class RemoteExecutable:
    """An `Executable`, compiled on each executor that has devices of it.

    It is compiled again when its executors have opened another client.

    Args:
      client: Its client.
      body: The command that compiles it, without a number.
      known: What is known of it; None: executors compile it now, and not when it is first used.
    """

    def __init__(
        self, client: Client, body: pb.CompileProgram, known: KnownProgram | None = None
    ) -> None:
        self._client = client
        self._body = body
        self._lock = threading.Lock()
        self._compiled: _Compiled | None = None
        if known is None:
            self._compiled = _Compiled(client, body)
            known = KnownProgram(self._compiled.facts, len(self._compiled.links))
        self._hosts = known.hosts
        self._facts = facts = known.facts
        self.name = facts.name
        self.fingerprint = facts.fingerprint
        self.memory = xla_pb2.CompiledMemoryStatsProto.FromString(facts.memory)
        self.code_bytes = facts.code_bytes

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
        """Asks an executor for the assignment of buffers; without it if one is lost.

        (JAX asks before the first run, whose error is expected to be that of a lost slice.)
        """
        try:
            described = self._described(pb.DescribeProgram.MEMORY)
        except StatusError as error:
            if error.code is not Code.DATA_LOSS:
                raise
            return self.memory
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
        runs = _Runs(self._client, self._current, results, self.aliased_parameters())
        if self._hosts > 1 and self._compiled is not None:
            runs.prepare()
        # (Else when it is first needed: a program of one executor is rather started.)
        return runs.run

    def starter(self, results: Sequence[ArraySpec], *, is_quick: bool) -> Start | None:
        """Returns what starts the program on its executor; None if it has several.

        (If a program fails on one of several hosts, those behind it would fail as well.)
        """
        if self._hosts > 1:
            return None
        runs = _Runs(
            self._client, self._current, results, self.aliased_parameters(), may_be_quick=is_quick
        )
        if self._compiled is not None:
            runs.prepare()
        return runs

    def _described(self, what: pb.DescribeProgram.What.ValueType) -> bytes | None:
        compiled = self._current()
        describe = pb.DescribeProgram(program=compiled.number, what=what)
        (report,) = self._client.ask(compiled.client, compiled.links[:1], describe=describe)
        return report.description if report.HasField("description") else None

    def _current(self) -> _Compiled:
        """Returns the program of the executors' present client."""
        compiled = self._compiled
        if compiled is not None and compiled.client == self._client.present().number:
            return compiled
        with self._lock:
            compiled = self._compiled
            if compiled is None or compiled.client != self._client.present().number:
                compiled = self._compiled = _Compiled(self._client, self._body)
            return compiled


class _Runner:
    """A compiled program's way to run; executors drop it when nothing refers to this.

    Attributes:
      compiled: The program.
      number: Its number in executors.
      kinds: For each result the executor of each piece, its type, and the shape of a piece.
    """

    def __init__(
        self, client: Client, compiled: _Compiled, results: Sequence[ArraySpec], *, is_quick: bool
    ) -> None:
        self.compiled = compiled
        self.number = new_number()
        self._times = client.times
        self._has_run = False
        self.kinds = [
            (compiled.present.links_of(spec), spec.dtype, spec.placing.shard_shape(spec.shape))
            for spec in results
        ]
        make = pb.MakeRunner(
            program=compiled.number,
            runner=self.number,
            results=[spec_message(spec) for spec in results],
            is_quick=is_quick,
        )
        client.ask(compiled.client, compiled.links, make_runner=make)

    def ran(self, reports: Sequence[pb.ExecutorReport]) -> None:
        """Enters the time of a run on each executor, except the first run, which warms up."""
        compiled, times = self.compiled, self._times
        if times is None:
            return
        if self._has_run:
            times_ns = [report.run_ns for report in reports]
            times.ran(compiled.facts.name, compiled.digest, compiled.devices, times_ns)
        self._has_run = True

    def __del__(self) -> None:
        for link in self.compiled.links:
            link.free("runners", self.number)


class _Runs:
    """Runs a program with the executors' present client; as a `Start`, if it has one executor."""

    def __init__(
        self,
        client: Client,
        current: Callable[[], _Compiled],
        results: Sequence[ArraySpec],
        aliased: frozenset[int],
        *,
        may_be_quick: bool = False,
    ) -> None:
        self._client = client
        self._current = current
        self._results = results
        self._aliased = aliased
        self._may_be_quick = may_be_quick
        self._lock = threading.Lock()
        self._runner: _Runner | None = None
        # For which placements it was last asked for, and what was found.
        self._found: tuple[Sequence[Placement] | None, _Runner | None] = (None, None)

    def run(self, arguments: list[Any]) -> list[Any]:
        """Runs the program on these arrays to its end; returns its results."""
        runner, command, made = self._prepare(arguments)
        compiled = runner.compiled
        try:
            runner.ran(self._client.ask(compiled.client, compiled.links, run=command.run))
        finally:
            self._donate(arguments)
        return made

    @property
    def is_quick(self) -> bool:
        """Whether it is started at once: nothing must be opened or compiled first."""
        runner = self._runner
        return runner is not None and self._client.is_on(runner.compiled.links)

    def __call__(
        self, arguments: list[Any], on_end: Callable[[StatusError | None], None], /
    ) -> list[Any]:
        """Starts the program; `on_end` is called by the thread that reads reports, or now."""
        runner, command, made = self._prepare(arguments)
        (link,) = runner.compiled.links

        def ended(end: pb.ExecutorReport | StatusError) -> None:
            if isinstance(end, StatusError):
                on_end(end)
                return
            # (Before it is compared: its results are waited for.)
            on_end(None)
            runner.ran((end,))

        link.start(command, ended)
        self._donate(arguments)
        return made

    def _prepare(
        self, arguments: list[Any]
    ) -> tuple[_Runner, pb.ExecutorCommand, list[RemoteArray]]:
        runner = self.present()
        client = runner.compiled.client
        made = [RemoteArray(client, on, dtype, shape) for on, dtype, shape in runner.kinds]
        command = pb.ExecutorCommand(client=client)
        # (Filled in place: a message that is given to another is copied.)
        run = command.run
        run.runner = runner.number
        run.arguments.extend([argument.number for argument in arguments])
        run.results.extend([array.number for array in made])
        return runner, command, made

    def _donate(self, arguments: list[Any]) -> None:
        # (Also if it failed: it may have taken the memory before, or on another host.)
        for index in self._aliased:
            arguments[index].donate()

    def prepare(self) -> None:
        """Makes the way to run it; if an executor is lost, not now: its first run says so."""
        try:
            self.present()
        except StatusError as error:
            if error.code is not Code.DATA_LOSS:
                raise

    def present(self) -> _Runner:
        """Returns the way to run it with the present client."""
        bound = bound_placements()
        found_for, runner = self._found
        # (One executor that is still there has no other client meanwhile.)
        if runner is not None and found_for is bound and self._client.is_on(runner.compiled.links):
            return runner
        compiled, runner = self._current(), self._runner
        if runner is None or runner.compiled is not compiled:
            with self._lock:
                runner = self._runner
                if runner is None or runner.compiled is not compiled:
                    runner = self._runner = _Runner(
                        self._client, compiled, self._results, is_quick=self._may_be_quick
                    )
        self._found = (bound, runner)
        return runner


def _layouts(layouts: pb.Layouts) -> list[str]:
    if layouts.error:
        raise RuntimeError(layouts.error)
    return list(layouts.layouts)
