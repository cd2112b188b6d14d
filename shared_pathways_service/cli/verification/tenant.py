"""A client program of `sps verify` as a process: its orders, its messages, its end."""

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

from shared_pathways_service.errors import SharedPathwaysError, from_json
from shared_pathways_service.events.tenants import TenantQueued

__all__ = ["Tenant"]

#: Lines of what a client wrote on standard error that an error shows.
_TAIL = 5
#: Seconds for a client that was asked to end; its agent cleans up after it in any case.
_END_S = 60.0


class Tenant:
    """A tenant of the service, driven step by step. `close` ends it, whatever it does.

    Args:
      name: Of its connection.
      arguments: Of connect(), as JSON has them.
      log: A file for what it writes on standard error.
      environment: Variables beside those of this process; None takes one away.
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
        variables = {**os.environ, **(environment or {})}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shared_pathways_service.cli.verification.tenant_program"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={key: value for key, value in variables.items() if value is not None},
                # Ctrl-C is for the process that drives it, which ends its tenants in order.
                start_new_session=True,
            )
        self._connected = False
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"sps-verify-{name}", daemon=True)
        self._reader.start()
        self._write(json.dumps({**arguments, "proxy_job_name": name}))

    def order(self, order: str) -> None:
        """Gives it an order; one that has ended is found out by `expect`."""
        self._write(order)

    def expect(self, kind: str, timeout_s: float, *, event: str = "") -> dict[str, Any]:
        """Waits for a message; others are passed over.

        Args:
          kind: Of the message.
          timeout_s: Seconds.
          event: For ``event``: of which kind.

        Raises:
          SharedPathwaysError: The client failed, ended, or said nothing in time.
        """
        return self.expect_one_of((event or kind,), timeout_s)

    def expect_one_of(self, kinds: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Waits for the first message of some kinds; others are passed over.

        Args:
          kinds: Of the messages; of events their own, e.g. ``tenant.queued``.
          timeout_s: Seconds.

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
                    f"{self.name}: no message {wanted} within {timeout_s:g} s{self._tail()}",
                    hint="--timeout gives it longer",
                ) from None
            if message is None:
                code = self._process.wait(_END_S)
                raise SharedPathwaysError(f"{self.name} ended with {code}{self._tail()}")
            self._connected = self._connected or message["kind"] == "connected"
            if message["kind"] == "failed" and "failed" not in kinds:
                raise from_json(message["error"])
            # (An event's kind has a dot, a message's has none.)
            if message.get("event", message)["kind"] in kinds:
                return message

    def failure(self, timeout_s: float) -> SharedPathwaysError:
        """Waits for the error that the client ends with, and returns it.

        Raises:
          SharedPathwaysError: None came in time.
        """
        return from_json(self.expect("failed", timeout_s)["error"])

    def refusal(self, timeout_s: float) -> SharedPathwaysError | None:
        """Waits until its request is refused or granted.

        Returns:
          The error that the client ends with, or None: it is connected.

        Raises:
          SharedPathwaysError: Neither came in time.
        """
        told = self.expect_one_of(("failed", "connected"), timeout_s)
        return from_json(told["error"]) if told["kind"] == "failed" else None

    def waits_in_queue(self, timeout_s: float) -> bool:
        """Waits until its request is in the queue, and returns True; False: it is connected.

        Raises:
          SharedPathwaysError: The client failed, or neither came in time.
        """
        told = self.expect_one_of((TenantQueued().kind, "connected"), timeout_s)
        return bool(told["kind"] == "event")

    def kill(self) -> None:
        """Ends the client without a chance to clean up."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_END_S)

    def close(self) -> None:
        """Ends the client, by a kill if it does not leave in time; a second call does nothing."""
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        if not self._connected:
            # It may wait in a queue, and reads no orders yet.
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(_END_S)
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
        return "; it wrote: " + " | ".join(lines) if lines else ""
