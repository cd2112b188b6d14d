"""Controls a client program of `sps verify` that runs as a process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_pathways_service.api.requests import DEFAULT_LINK
from shared_pathways_service.constants import NOT_RESUMABLE
from shared_pathways_service.errors import SharedPathwaysError, from_json
from shared_pathways_service.events.session import ServiceWarning
from shared_pathways_service.events.tenants import TenantQueued
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.location import with_package_path

__all__ = ["Tenant"]

_PROGRAM = "shared_pathways_service.cli.verification.tenant_program"
#: Lines of a client's standard error that an error shows.
_TAIL = 5


class Tenant:
    """A tenant of the service, controlled step by step. `close` ends it in any state.

    Args:
      name: The name of its connection.
      arguments: Arguments of connect() for JSON.
      log: A file for its standard error.
      environment: Variables in addition to this process's; None removes one.
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        log: Path,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self.name = name
        self._log = log
        self._link = str(arguments.get("link", DEFAULT_LINK))
        variables = {**os.environ, **(environment or {})}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=with_package_path({k: v for k, v in variables.items() if v is not None}),
                # Ctrl-C goes to the controlling process, which ends its tenants in order.
                start_new_session=True,
            )
        self._connected = False
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"sps-verify-{name}", daemon=True)
        self._reader.start()
        self._write(json.dumps({**arguments, "proxy_job_name": name}))

    def order(self, order: str) -> None:
        """Sends an order; `expect` reports a client that has ended."""
        self._write(order)

    def expect(self, kind: str, timeout_s: float, *, event: str = "") -> dict[str, Any]:
        """Waits for a message, and skips others.

        Args:
          kind: The kind of the message.
          timeout_s: Seconds to wait.
          event: With the kind ``event``: the kind of the event.

        Raises:
          SharedPathwaysError: The client failed, ended, or did not send the message in time.
        """
        return self.expect_one_of((event or kind,), timeout_s)

    def expect_one_of(self, kinds: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Waits for the first message of some kinds, and skips others.

        Args:
          kinds: Kinds of messages or of events, e.g. ``tenant.queued``.
          timeout_s: Seconds to wait.

        Raises:
          SharedPathwaysError: As `expect`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = self._messages.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                wanted = " or ".join(map(repr, kinds))
                raise SharedPathwaysError(
                    f"{self.name} sent no message {wanted} within {timeout_s:g} s{self._tail()}",
                    hint="a longer --timeout may help",
                ) from None
            if message is None:
                code = self._process.wait(timeout=timeouts.VERIFY_TENANT_END.s)
                raise SharedPathwaysError(f"{self.name} ended with exit code {code}{self._tail()}")
            self._connected = self._connected or message["kind"] == "connected"
            if message["kind"] == "failed" and "failed" not in kinds:
                raise from_json(message["error"])
            # (Only kinds of events contain a dot.)
            if message.get("event", message)["kind"] in kinds:
                return message

    def failure(self, timeout_s: float) -> SharedPathwaysError:
        """Waits for the error that the client ends with, and returns it.

        Raises:
          SharedPathwaysError: The client did not fail in time.
        """
        return from_json(self.expect("failed", timeout_s)["error"])

    def refusal(self, timeout_s: float) -> SharedPathwaysError | None:
        """Waits until its request is refused or granted.

        Returns:
          The error that the client ends with, or None: it is connected.

        Raises:
          SharedPathwaysError: Neither happened in time.
        """
        message = self.expect_one_of(("failed", "connected"), timeout_s)
        return from_json(message["error"]) if message["kind"] == "failed" else None

    def waits_in_queue(self, timeout_s: float) -> bool:
        """Waits until its request is in the queue, and returns True; False: it is connected.

        Raises:
          SharedPathwaysError: The client failed, or neither happened in time.
        """
        message = self.expect_one_of((TenantQueued().kind, "connected"), timeout_s)
        return bool(message["kind"] == "event")

    def connects_resumably(self, timeout_s: float) -> bool:
        """Waits until it is connected; returns whether its link is resumable.

        Raises:
          SharedPathwaysError: The client failed, or is not connected in time.
        """
        is_resumable = self._link == "resumable"
        while True:
            message = self.expect_one_of((ServiceWarning.kind, "connected"), timeout_s)
            if message["kind"] == "connected":
                return is_resumable
            if NOT_RESUMABLE in str(message["event"].get("reason")):
                is_resumable = False

    def kill(self) -> None:
        """Ends the client without a chance to clean up."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeouts.VERIFY_TENANT_END.s)

    def close(self) -> None:
        """Ends the client, and kills it if it does not end in time; a second call has no effect."""
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        if not self._connected:
            # It may be waiting in a queue, and does not read orders yet.
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeouts.VERIFY_TENANT_END.s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(timeouts.VERIFY_TENANT_END.s)
        if self._process.stdout:
            self._process.stdout.close()

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._messages.put(json.loads(line))
        self._messages.put(None)

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_TAIL:]
        return "; its last output: " + " | ".join(lines) if lines else ""
