"""Executors of this host, between the resource manager's messages and their supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.servers.worker.executor_process import Assignment, Command
from shared_pathways_service.servers.worker.executor_supervisor import (
    Ended,
    ExecutorSupervisor,
    Serving,
)

__all__ = ["HostExecutors"]


class HostExecutors:
    """Carries out assignments, and reports on executors to a manager that takes reports.

    Without such a manager it has neither a thread nor a process.

    Args:
      command: Builds the command line of an executor.
      hello: This worker's.
      host: The address that executors bind, without a port.
      send: Sends a message to the manager; without a stream it is dropped.
      on_unfit: Called with the reason if this host cannot run executors.
    """

    def __init__(
        self,
        command: Command,
        hello: pb.WorkerHello,
        host: str,
        *,
        send: Callable[[pb.WorkerMessage], None],
        on_unfit: Callable[[str], None],
    ) -> None:
        self._command = command
        self._hello = hello
        self._host = f"[{host}]" if ":" in host else host
        self._send = send
        self._on_unfit = on_unfit
        # Guards the two below: `close` is called on another thread than the rest.
        self._lock = threading.Lock()
        self._supervisor: ExecutorSupervisor | None = None
        self._closed = False
        self._takes_reports = False

    def on_welcome(self, welcome: pb.WorkerWelcome) -> None:
        """Reports on the executor that runs, or ends it if the manager does not use executors."""
        self._takes_reports = welcome.takes_executors
        if self._supervisor is not None:
            if welcome.takes_executors:
                self._supervisor.repeat_report()
            else:
                self._supervisor.assign(None)

    def on_assignment(self, assigned: pb.WorkerAssignment) -> None:
        """Has the executor of a placement run, and no other."""
        with self._lock:
            if self._closed:
                return
            if self._supervisor is None and assigned.generation:
                self._supervisor = ExecutorSupervisor(
                    self._command,
                    slice_id=self._hello.slice_id,
                    host_index=self._hello.host_index,
                    report=self._report,
                    on_unfit=self._on_unfit,
                )
        if self._supervisor is not None:
            self._supervisor.assign(_assignment(assigned) if assigned.generation else None)

    def usage(self) -> pb.ExecutorUsage | None:
        """Measures the executor that runs; None: there is nothing to report."""
        if not self._takes_reports or self._supervisor is None:
            return None
        measured = self._supervisor.measure()
        if measured is None:
            return None
        assignment, usage = measured
        return pb.ExecutorUsage(
            generation=assignment.generation,
            resident_bytes=usage.resident_bytes,
            memory_limit_bytes=assignment.memory_limit_bytes,
            cpu_seconds=usage.cpu_seconds,
            cpu_percent=usage.cpu_percent,
        )

    def on_end(self) -> None:
        """Stops reports: the next stream may be to a manager that does not take them."""
        self._takes_reports = False

    def close(self) -> None:
        """Ends the executor, and starts none any more."""
        with self._lock:
            self._closed = True
        if self._supervisor is not None:
            self._supervisor.close()

    def _report(self, news: Serving | Ended) -> None:
        if not self._takes_reports:
            return  # it is reported again after the next welcome
        if isinstance(news, Serving):
            report = pb.WorkerExecutor(
                generation=news.generation,
                address=f"{self._host}:{news.port}",
                token=news.token,
                pid=news.pid,
                usage=self.usage(),
            )
        else:
            report = pb.WorkerExecutor(
                generation=news.generation, reason=news.reason, exit_code=news.exit_code
            )
        self._send(pb.WorkerMessage(executor=report))


def _assignment(assigned: pb.WorkerAssignment) -> Assignment:
    return Assignment(
        tenant=assigned.tenant,
        generation=assigned.generation,
        instance_type=InstanceType.parse(assigned.instance_type),
        memory_limit_bytes=assigned.memory_limit_bytes,
    )
