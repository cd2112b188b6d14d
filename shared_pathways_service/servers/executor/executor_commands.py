"""Decides when a proxy's commands run, and reports how they ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.interface import Executable
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
)
from shared_pathways_service.servers.executor.held_arrays import HeldArray, when_settled
from shared_pathways_service.servers.executor.opened_clients import (
    OpenedClient,
    Runner,
    description,
    facts,
)

__all__ = ["Commands"]

#: Threads for all but programs: these have one for each client, and one for compilation.
_THREADS = 4

Report = Callable[[pb.ExecutorReport], None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    number: int
    client: int
    kind: str
    body: Any
    uses: Sequence[HeldArray]
    makes: Sequence[HeldArray]


class Commands:
    """What one proxy has on this executor. Not thread-safe, but it uses threads.

    Args:
      own_devices: The number of devices here.
      host: An address of this machine that other executors can reach.
      report: Called with each report, on any thread.
    """

    def __init__(self, own_devices: int, host: str, report: Report) -> None:
        self._own_devices = own_devices
        self._host = host
        self._report = report
        self._clients: dict[int, OpenedClient] = {}
        self._runs: dict[int, futures.ThreadPoolExecutor] = {}
        self._compiling = futures.ThreadPoolExecutor(1, "compile")
        # A client opens once the other hosts do, in any order: each gets a thread.
        self._opening = futures.ThreadPoolExecutor(32, "open")
        self._others = futures.ThreadPoolExecutor(_THREADS, "command")
        self._arrays: dict[int, HeldArray] = {}
        self._programs: dict[int, Executable] = {}
        self._runners: dict[int, Runner] = {}
        self._carry_out: Mapping[str, Callable[[_Job, pb.ExecutorReport], None]] = {
            "open": self._open,
            "put": self._put,
            "fetch": self._fetch,
            "split": self._split,
            "join": self._make,
            "adopt": self._make,
            "copy": self._make,
            "reinterpret": self._make,
            "reshard": self._reshard,
            "compile": self._compile,
            "describe": self._describe,
            "make_runner": self._make_runner,
            "run": self._run,
        }

    def take(self, command: pb.ExecutorCommand) -> None:
        """Begins a command, after those that it depends on."""
        kind = command.WhichOneof("command") or ""
        if kind == "free":
            self._free(command.free)
            return
        body = getattr(command, kind) if kind else None
        makes = [self._new(number) for number in _made(kind, body)]
        unknown = [number for number in _used(kind, body) if number not in self._arrays]
        uses = [self._arrays[number] for number in _used(kind, body) if not unknown]
        job = _Job(command.number, command.client, kind, body, uses, makes)
        if unknown or kind not in self._carry_out:
            what = f"no array {unknown[0]}" if unknown else "a command that is not known here"
            self._fail(job, StatusError(Code.INTERNAL, what))
        elif kind == "run":
            # (Its thread waits for the arguments, so that the next program does not overtake it.)
            self._queue(job).submit(self._run_in_order, job)
        else:
            threads = {
                "open": self._opening,
                "compile": self._compiling,
                "describe": self._compiling,
            }.get(kind, self._others)
            when_settled(uses, lambda: _submit(threads, self._do, job))

    def _new(self, number: int) -> HeldArray:
        made = self._arrays[number] = HeldArray()
        return made

    def _queue(self, job: _Job) -> futures.ThreadPoolExecutor:
        found = self._runs.get(job.client)
        if found is None:
            found = self._runs[job.client] = futures.ThreadPoolExecutor(1, f"run-{job.client}")
        return found

    def _run_in_order(self, job: _Job) -> None:
        settled: futures.Future[None] = futures.Future()
        when_settled(job.uses, lambda: settled.set_result(None))
        # Without a deadline: it ends when earlier commands do, or with this process.
        settled.result()
        self._do(job)

    def _do(self, job: _Job) -> None:
        report = pb.ExecutorReport(number=job.number)
        try:
            self._carry_out[job.kind](job, report)
        except Exception as error:  # noqa: BLE001 - whatever it is, the proxy receives it
            self._fail(job, from_exception(error))
            return
        if job.number:
            self._report(report)

    def _fail(self, job: _Job, error: StatusError) -> None:
        for held in job.makes:
            held.fail(error)
        if job.number:
            report = pb.ExecutorReport(number=job.number, code=error.code.value)
            report.message = error.message
            self._report(report)

    def _free(self, body: pb.Free) -> None:
        for numbers, held in (
            (body.arrays, self._arrays),
            (body.programs, self._programs),
            (body.runners, self._runners),
        ):
            for number in numbers:
                held.pop(number, None)

    # ---- one method for each command

    def _open(self, job: _Job, _report: pb.ExecutorReport) -> None:
        self._clients[job.client] = OpenedClient(job.body, self._own_devices, self._host)

    def _put(self, job: _Job, _report: pb.ExecutorReport) -> None:
        job.makes[0].fill(*self._client(job).put(job.body))

    def _fetch(self, job: _Job, report: pb.ExecutorReport) -> None:
        report.pieces.extend(self._client(job).fetch(job.uses[0].get()))

    def _split(self, job: _Job, _report: pb.ExecutorReport) -> None:
        whole = job.uses[0]
        parts = self._client(job).split(whole.get())
        assert whole.spec is not None
        for held, part in zip(job.makes, parts, strict=True):
            held.fill(whole.spec, part)

    def _make(self, job: _Job, _report: pb.ExecutorReport) -> None:
        parts = [held.get() for held in job.uses]
        job.makes[0].fill(*self._client(job).make(job.kind, job.body, parts))

    def _reshard(self, job: _Job, _report: pb.ExecutorReport) -> None:
        parts = [held.get() for held in job.uses]
        place = self._clients[job.body.held_client].placing(job.body.held)
        job.makes[0].fill(*self._client(job).reshard(job.body.make, place, parts))

    def _compile(self, job: _Job, report: pb.ExecutorReport) -> None:
        made = self._client(job).compile(job.body)
        report.facts.CopyFrom(facts(made))
        self._programs[job.body.program] = made

    def _describe(self, job: _Job, report: pb.ExecutorReport) -> None:
        described = description(self._program(job), job.body.what)
        if described is not None:
            report.description = described

    def _make_runner(self, job: _Job, _report: pb.ExecutorReport) -> None:
        made = self._client(job).runner(self._program(job), job.body.results)
        self._runners[job.body.runner] = made

    def _run(self, job: _Job, _report: pb.ExecutorReport) -> None:
        arguments = [held.get() for held in job.uses]
        runner = self._runners[job.body.runner]
        results = runner.run(arguments)
        for held, array, spec in zip(job.makes, results, runner.results, strict=True):
            held.fill(spec, array)

    def _client(self, job: _Job) -> OpenedClient:
        return self._clients[job.client]

    def _program(self, job: _Job) -> Executable:
        return self._programs[job.body.program]


def _submit(
    threads: futures.ThreadPoolExecutor, function: Callable[[_Job], None], job: _Job
) -> None:
    threads.submit(function, job)


def _made(kind: str, body: Any) -> Sequence[int]:
    """Returns the numbers of the arrays that a command makes."""
    if kind in {"put", "join", "adopt", "copy", "reinterpret"}:
        return (body.array,)
    if kind == "reshard":
        return (body.make.array,)
    if kind == "split":
        return tuple(body.parts)
    return tuple(body.results) if kind == "run" else ()


def _used(kind: str, body: Any) -> Sequence[int]:
    """Returns the numbers of the arrays that a command uses."""
    if kind in {"join", "adopt", "copy", "reinterpret"}:
        return tuple(body.parts)
    if kind == "reshard":
        return tuple(body.make.parts)
    if kind in {"fetch", "split"}:
        return (body.array,)
    return tuple(body.arguments) if kind == "run" else ()
