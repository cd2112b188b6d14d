"""Decides when a proxy's commands run, and reports how they ended."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Protocol

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.array_bytes import chunks, joined
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
)
from shared_pathways_service.servers.executor.command_names import Name, made_by, used_by
from shared_pathways_service.servers.executor.exchange import Offers
from shared_pathways_service.servers.executor.executor_engine import (
    BrokenClientError,
    Engine,
)
from shared_pathways_service.servers.executor.held import Held, when_settled
from shared_pathways_service.servers.executor.job import Job
from shared_pathways_service.servers.executor.own_profile import OwnProfile
from shared_pathways_service.servers.executor.python_calls import PythonCalls
from shared_pathways_service.servers.executor.run_queue import RunQueue

__all__ = ["Commands"]

#: Threads for all but programs: these have one for each client, and one for compilation.
_THREADS = 4
#: Threads that wait for other executors: as many as the proxy has for transfers, so that none of
#: them waits for another one's end.
_GATHERING = 64

#: The most bytes of an array that are in the report itself.
_SMALL_BYTES = 64 << 10

#: The bytes of large arrays.
Data = Iterator[memoryview]


class Report(Protocol):
    """Takes reports."""

    def __call__(
        self, report: pb.ExecutorReport, data: Data | None = None, *, may_wait: bool = False
    ) -> None:
        """Takes a report, and bytes that belong to it; it may wait a little for the next one."""


class Commands:
    """What one proxy has on this executor. Not thread-safe, but it uses threads.

    Args:
      engine: Opens clients.
      report: Called with each report on any thread.
      offers: What is offered to other executors.
      process: This process, with its host, for messages.
      python: Calls functions in processes of this host.
    """

    def __init__(
        self, engine: Engine, report: Report, offers: Offers, process: str, python: PythonCalls
    ) -> None:
        self._engine = engine
        self._process = process
        self._report = report
        self._offers = offers
        self._python = python
        self._runs: dict[int, RunQueue] = {}
        self._compiling = futures.ThreadPoolExecutor(1, "compile")
        # A client opens once the other hosts do, in any order: each gets a thread.
        self._opening = futures.ThreadPoolExecutor(32, "open")
        self._gathering = futures.ThreadPoolExecutor(_GATHERING, "gather")
        self._others = futures.ThreadPoolExecutor(_THREADS, "command")
        self._profile = OwnProfile()
        self._held: dict[Name, Held] = {}
        self._carry_out: Mapping[str, Callable[[Job, pb.ExecutorReport], Data | None]] = {
            "meet": lambda _job, _report: None,
            "open": self._open,
            "put": self._put,
            "fetch": self._fetch,
            "split": self._split,
            "join": self._make,
            "adopt": self._make,
            "copy": self._make,
            "reinterpret": self._make,
            "reshard": self._reshard,
            "offer": self._offer,
            "gather": self._gather,
            "compile": self._compile,
            "describe": self._describe,
            "make_runner": self._make_runner,
            "run": self._run,
            "make_python": self._python.make,
            "end_python": self._python.end,
            "profile": self._profile.carry_out,
        }

    def take(self, command: pb.ExecutorCommand, data: Sequence[memoryview] = ()) -> None:
        """Begins a command, after those that it depends on; `data` came before it."""
        kind = command.WhichOneof("command") or ""
        if kind == "free":
            self._free(command.free)
            return
        if kind == "abandon_python":
            self._python.abandon(command.abandon_python.call)
            return
        body: Any = getattr(command, kind) if kind else None
        if kind == "open":
            # Now, on one thread: XLA reads its flags with the first client.
            self._engine.bound_collectives(body.collective_timeout_s)
        elif kind == "offer":
            self._offers.announce(body.transfer, body.token)
        names = list(used_by(kind, body, command.client))
        unknown = [name for name in names if name not in self._held]
        uses = [self._held[name] for name in names if not unknown]
        makes = [self._new(name) for name in made_by(kind, body, command.client)]
        job = Job(command.number, command.client, kind, body, uses, makes, data)
        if unknown or kind not in {*self._carry_out, "call_python"}:
            self._refuse(job, unknown)
        elif kind == "call_python":
            self._python.expect(job.number)
            when_settled(uses, lambda: self._submit(self._others, job))
        elif kind in {"meet", "open"} and not self._start_runs(job):
            self._fail(job, _no_thread(self._process, job.kind))
        elif kind == "run":
            self._put_run(job)
        else:
            threads = {
                "meet": self._opening,
                "open": self._opening,
                "gather": self._gathering,
                "compile": self._compiling,
                "describe": self._compiling,
            }.get(kind, self._others)
            if kind == "profile":
                # (Not behind other commands: the clock is read for its round trip.)
                threads = self._profile.threads_for(body) or self._opening
            when_settled(uses, lambda: self._submit(threads, job))

    def close(self) -> None:
        """Begins no further command, and does not wait for those that run."""
        for threads in (self._compiling, self._opening, self._gathering, self._others):
            threads.shutdown(wait=False, cancel_futures=True)
        for runs in self._runs.values():
            runs.end(cancel=True)
        self._profile.close()
        self._python.close_all()

    def _new(self, name: Name) -> Held:
        made = self._held[name] = Held()
        return made

    def _refuse(self, job: Job, unknown: Sequence[Name]) -> None:
        what = "a command that is not known here"
        if unknown:
            kind, number = unknown[0]
            what = f"{kind.removesuffix('s')} {number} does not exist"
        error = StatusError(Code.INTERNAL, what)
        client = self._held.get(("clients", job.client))
        if job.kind != "run" or client is None:
            self._fail(job, error)
            return
        # In order: programs before it may still run.
        refused = dataclasses.replace(job, uses=(client, _failed(error)))
        self._put_run(refused)

    def _start_runs(self, job: Job) -> bool:
        """Starts the thread of a new client's programs; returns False if there is none.

        (Not with its first program, which other hosts may run already; and when hosts meet, as
        those that open a client do not come back if one is missing.)
        """
        if not job.client or job.client in self._runs:
            return True
        try:
            self._runs[job.client] = RunQueue(f"run-{job.client}")
        except RuntimeError:
            return False
        return True

    def _put_run(self, job: Job) -> None:
        runs = self._runs.get(job.client)
        if runs is None or (runs.is_idle and job.is_quick):
            # Its client could not be opened, and it fails like that; or to pass it on takes longer.
            self._do(job)
        else:
            # (Its thread waits for the arguments, so that the next program does not overtake it.)
            runs.put(functools.partial(self._run_in_order, job))

    def _submit(self, threads: futures.ThreadPoolExecutor, job: Job) -> None:
        """Carries out a command on another thread; if the system has none, it fails."""
        # What a pool has no thread for remains queued, and may still run.
        claim = itertools.count().__next__

        def carry_out() -> None:
            if claim() == 0:
                self._do(job)

        try:
            threads.submit(carry_out)
        except RuntimeError:
            if claim() == 0:
                self._fail(job, _no_thread(self._process, job.kind))

    def _run_in_order(self, job: Job) -> None:
        if not job.can_run:
            settled = threading.Event()
            when_settled(job.uses, settled.set)
            # Without a deadline: it ends when earlier commands do, or with this process.
            settled.wait()
        self._do(job)

    def _do(self, job: Job) -> None:
        report = pb.ExecutorReport(number=job.number)
        try:
            if job.kind == "call_python":
                self._python.begin(job, lambda ended: self._submit(self._others, ended))
                return
            data = self._carry_out[job.kind](job, report)
        except Exception as error:  # noqa: BLE001 - whatever it is, the proxy receives it
            self._fail(job, from_exception(error, self._process))
            return
        if job.number:
            self._report(report, data, may_wait=self._is_followed(job))

    def _is_followed(self, job: Job) -> bool:
        """Whether the report of another program follows, on which the proxy has not to wait for."""
        runs = self._runs.get(job.client) if job.kind == "run" else None
        return runs is not None and not runs.is_empty

    def _fail(self, job: Job, error: StatusError) -> None:
        for held in job.makes:
            held.fail(error)
        self._python.forget(job.number)
        if job.number:
            report = pb.ExecutorReport(number=job.number, code=error.code.value)
            report.message = error.message
            report.is_broken = isinstance(error, BrokenClientError)
            self._report(report)

    def _free(self, body: pb.Free) -> None:
        # (Commands before this one refer to what they use.)
        for field in ("arrays", "programs", "runners", "clients"):
            for number in getattr(body, field):
                self._python.drop(self._held.pop((field, number), None))
        self._python.close(body.pythons)
        for number in body.transfers:
            self._offers.free(number)
        for number in body.clients:
            runs = self._runs.pop(number, None)
            if runs is not None:
                runs.end()

    # ---- one method for each command

    def _open(self, job: Job, _report: pb.ExecutorReport) -> None:
        job.makes[0].fill(self._engine.open(job.body))

    def _put(self, job: Job, _report: pb.ExecutorReport) -> None:
        job.makes[0].fill(job.opened.put(job.body.spec, _shards(job)))

    def _fetch(self, job: Job, report: pb.ExecutorReport) -> Data | None:
        pieces = job.opened.fetch(job.uses[1].get())
        if sum(map(len, pieces)) > _SMALL_BYTES:
            return chunks(pieces)
        report.pieces.extend(map(bytes, pieces))
        return None

    def _split(self, job: Job, _report: pb.ExecutorReport) -> None:
        parts = job.opened.split(job.uses[1].get())
        for held, part in zip(job.makes, parts, strict=True):
            held.fill(part)

    def _make(self, job: Job, _report: pb.ExecutorReport) -> None:
        parts = [held.get() for held in job.uses[1:]]
        job.makes[0].fill(job.opened.make(job.kind, job.body, parts))

    def _reshard(self, job: Job, _report: pb.ExecutorReport) -> None:
        parts = [held.get() for held in job.uses[2:]]
        job.makes[0].fill(job.opened.reshard(job.body, job.uses[1].get(), parts))

    def _offer(self, job: Job, _report: pb.ExecutorReport) -> None:
        arrays = [held.get() for held in job.uses[1:]]
        self._offers.hold(job.body.transfer, job.opened.offered(job.body, arrays))

    def _gather(self, job: Job, _report: pb.ExecutorReport) -> None:
        arrays = [held.get() for held in job.uses[1:]]
        job.makes[0].fill(job.opened.gather(job.body, arrays))

    def _compile(self, job: Job, report: pb.ExecutorReport) -> None:
        client = job.opened
        made = client.compile(job.body)
        report.facts.CopyFrom(client.facts(made))
        job.makes[0].fill(made)

    def _describe(self, job: Job, report: pb.ExecutorReport) -> None:
        described = job.opened.description(job.uses[1].get(), job.body.what)
        if described is not None:
            report.description = described

    def _make_runner(self, job: Job, _report: pb.ExecutorReport) -> None:
        body = job.body
        made = job.opened.runner(job.uses[1].get(), body.results, is_quick=body.is_quick)
        job.makes[0].fill(made)

    def _run(self, job: Job, report: pb.ExecutorReport) -> None:
        client = job.opened
        spans_hosts = client.spans_hosts
        try:
            runner = job.uses[1].get()
            spans_hosts = runner.program.spans_hosts
            arguments = [held.get() for held in job.uses[2:]]
            began = time.perf_counter_ns()
            results = client.run(runner, arguments)
            report.run_ns = time.perf_counter_ns() - began
        except Exception as error:
            if not spans_hosts:
                raise
            # Other hosts may have run it, and gone on: their next data is not for the next program
            # here.
            client.break_down()
            failure = from_exception(error, self._process)
            raise BrokenClientError(failure.code, failure.message) from error
        for held, array in zip(job.makes, results, strict=True):
            held.fill(array)


def _no_thread(process: str, kind: str) -> StatusError:
    return StatusError(
        Code.RESOURCE_EXHAUSTED,
        f"{process} has no thread for the command {kind}: the system refuses more",
    )


def _shards(job: Job) -> Sequence[bytes | memoryview]:
    body: pb.PutArray = job.body
    return joined(body.sizes, job.data, f"array {body.array}") if job.data else body.shards


def _failed(error: StatusError) -> Held:
    held = Held()
    held.fail(error)
    return held
