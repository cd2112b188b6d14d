"""Finds a connection's executors in the logs of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.operations.service_readers.base import LogRequest
from shared_pathways_service.runtime.executor_lines import read_tagged

__all__ = ["ExecutorLines"]


class ExecutorLines:
    """Selects the lines of a connection's executors, and no other's.

    Args:
      wanted: The connection and the host.
    """

    def __init__(self, wanted: LogRequest) -> None:
        self._wanted = wanted
        self._hosts: set[int] = set()
        # As of the status.
        self._has_executors = False
        self._has_no_slices = False

    def select(self, line: str) -> tuple[str, str] | None:
        """Returns the executor and its text, of a line of a worker's log; None: of another one."""
        found = read_tagged(line)
        if found is None or found[0].tenant != self._wanted.name:
            return None
        tag, text = found
        self._hosts.add(tag.host)
        if self._wanted.host not in {None, tag.host}:
            return None
        return f"{tag.slice_id}-{tag.host}", text

    def check_status(self, read: Callable[[str], Mapping[str, Any]]) -> bool:
        """Checks that the connection has such executors; returns False if it is not known.

        One that has ended is not known, but lines of its executors may be left.

        Args:
          read: Returns the status of a connection, or raises ServiceNotFound.

        Raises:
          ServiceNotFound: It has slices, but no executors.
          InvalidRequestError: Its slices have no such host.
        """
        name = self._wanted.name
        try:
            status = read(name)
        except ServiceNotFound:
            return False
        executors = status.get("executors")
        if executors:
            self._has_executors = True
            self._check_host({item["host"] for item in executors})
        elif status["slices"]:
            raise ServiceNotFound(
                f"{name} has no executors: its programs run in its proxy",
                hint=f"`sps logs {name}` shows the log of the proxy; only services with the engine "
                "distributed have executors",
            )
        else:
            # (Without the resource manager's answer, it is not known.)
            self._has_no_slices = executors is not None
        return True

    def check_found(self) -> None:
        """Checks that there were lines, once the logs were read to their ends.

        Raises:
          ServiceNotFound: There were none.
          InvalidRequestError: There were none of this host.
        """
        if self._hosts:
            self._check_host(self._hosts)
            return
        name = self._wanted.name
        if self._has_executors:
            raise ServiceNotFound(
                f"the executors of {name} have written nothing yet",
                hint=f"`sps status {name}` shows their states",
            )
        if self._has_no_slices:
            raise ServiceNotFound(
                f"{name} holds no slices yet, and has no executors",
                hint=f"`sps explain {name}` says what it waits for",
            )
        raise ServiceNotFound(
            f"the logs of workers have no lines of executors of {name}",
            hint="only services with the engine distributed have executors",
        )

    def _check_host(self, hosts: set[int]) -> None:
        wanted = self._wanted
        if wanted.host is not None and wanted.host not in hosts:
            known = ", ".join(map(str, sorted(hosts)))
            raise InvalidRequestError(
                "--host", wanted.host, f"a host that has executors of {wanted.name}: {known}"
            )
