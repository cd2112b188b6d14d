"""Calls a session's functions in processes of executors, on the hosts of their arguments."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from concurrent import futures
from typing import Any

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.dtypes import STRING
from shared_pathways_service.servers.devices.interface import ArraySpec
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.awaiting import result_of
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink, new_number
from shared_pathways_service.servers.proxy.executors.remote_arrays import RemoteArray, spec_message

__all__ = ["ExecutorFunction", "ExecutorPython", "RemoteCall"]


class ExecutorFunction:
    """A function, as executors know it; they drop it when nothing refers to this, or before.

    Args:
      body: What makes it a program there, without a number.
      results: What it returns.
    """

    def __init__(self, body: pb.MakePython, results: Sequence[ArraySpec]) -> None:
        self.results = results
        self._body = body
        self._lock = threading.Lock()
        self._numbers: dict[ExecutorLink, int] = {}
        self._body.results.extend(spec_message(s) for s in results if s.kind != STRING)

    def on(self, link: ExecutorLink, client: int) -> int:
        """Returns its number in an executor; sends it there before its first use."""
        with self._lock:
            number = self._numbers.get(link)
            if number is None:
                # (What has ended is not used again.)
                self._numbers = {k: n for k, n in self._numbers.items() if k.lost is None}
                number = self._numbers[link] = new_number()
                command = pb.ExecutorCommand(client=client, make_python=self._body)
                command.make_python.program = number
                link.tell(command)
            return number

    def drop(self) -> None:
        """Frees it, once no operation uses it."""
        with self._lock:
            numbers, self._numbers = self._numbers, {}
        for link, number in numbers.items():
            link.free("programs", number)

    def __del__(self) -> None:
        # (A session that ends drops none of its functions.)
        self.drop()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RemoteCall:
    """A call on an executor."""

    link: ExecutorLink
    client: int
    number: int
    report: futures.Future[pb.ExecutorReport]
    #: The array of each result; None: a string.
    arrays: Sequence[RemoteArray | None]
    #: The pieces of each string.
    pieces: int

    def results(self) -> list[Any]:
        """Waits for its end, and returns its results; strings as lists of bytes.

        Raises:
          StatusError: It has failed, or its executor is lost.
        """
        strings = iter(result_of(self.report).pieces)
        return [
            [next(strings) for _ in range(self.pieces)] if array is None else array
            for array in self.arrays
        ]

    def abandon(self) -> None:
        """Ends the call, and the process if it runs the call."""
        abandon = pb.AbandonPython(call=self.number)
        self.link.tell(pb.ExecutorCommand(client=self.client, abandon_python=abandon))


class ExecutorPython:
    """The processes of one session on executors, started by their first calls. Thread-safe."""

    def __init__(self) -> None:
        self.number = new_number()
        self._lock = threading.Lock()
        self._links: set[ExecutorLink] = set()
        self._outstanding = 0
        self._is_closed = False

    @property
    def outstanding(self) -> int:
        """The number of calls that wait or run."""
        return self._outstanding

    def put(
        self,
        function: ExecutorFunction,
        link: ExecutorLink,
        client: int,
        arguments: Sequence[RemoteArray],
    ) -> RemoteCall:
        """Calls a function on an executor that has all its devices.

        Args:
          function: The function.
          link: The executor.
          client: The number of the client there that the results belong to.
          arguments: Arrays on this executor.

        Raises:
          StatusError: The session has ended.
        """
        self._enter(link)
        pieces = len(function.results[0].placing.device_ids) if function.results else 0
        arrays = [
            None
            if spec.kind == STRING
            else RemoteArray(
                client, (link,) * pieces, spec.dtype, spec.placing.shard_shape(spec.shape)
            )
            for spec in function.results
        ]
        body = pb.CallPython(
            program=function.on(link, client),
            arguments=[array.number for array in arguments],
            results=[array.number for array in arrays if array is not None],
        )
        command = pb.ExecutorCommand(client=client, call_python=body)
        report = link.ask(command)
        report.add_done_callback(self._count_end)
        return RemoteCall(link, client, command.number, report, arrays, pieces)

    def close(self) -> None:
        """Ends the processes."""
        with self._lock:
            self._is_closed = True
            links, self._links = self._links, set()
        for link in links:
            link.free("pythons", self.number)

    def _enter(self, link: ExecutorLink) -> None:
        with self._lock:
            if self._is_closed:
                raise StatusError(Code.CANCELLED, "the session has ended")
            if link not in self._links:
                # (On those that are lost there is nothing to end.)
                self._links = {link, *(k for k in self._links if k.lost is None)}
            self._outstanding += 1

    def _count_end(self, _report: futures.Future[Any]) -> None:
        with self._lock:
            self._outstanding -= 1
