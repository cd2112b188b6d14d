"""The client's side of a session, which an agent in another process runs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_pathways_service.agent.agent_state import AgentState
from shared_pathways_service.agent.clean_up import clean_up_sessions, left_over
from shared_pathways_service.agent.launch import AGENT_COMMAND, launch_agent, let_linger
from shared_pathways_service.agent.login_answers import LoginAnswers
from shared_pathways_service.agent.messages import Decoder, MessageError, Start, encode
from shared_pathways_service.errors import (
    CleanupError,
    ConnectionClosed,
    SharedPathwaysError,
    TunnelError,
    from_json,
)
from shared_pathways_service.events import Event
from shared_pathways_service.events import session as ev
from shared_pathways_service.kube.handed_over import HandedOver, Login
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout, stalled
from shared_pathways_service.session.messages import Phase, Snapshot

__all__ = ["AgentLost", "AgentSession", "Sink"]

Sink = Callable[[Event], object]

#: Seconds between two checks while waiting.
_LOOK_S = 0.1

_log = logging.getLogger(__name__)


class AgentLost(SharedPathwaysError):  # noqa: N818 - reads as what happened, like its kin
    """The agent's process ended before its session did."""


class AgentSession:
    """One session, run by its own agent.

    Args:
      start: The agent's instructions.
      log: The file for the agent's output.
      on_event: Called with every event, on the thread that reads; its errors are only logged.
      on_state: Called after every change of the snapshot, likewise.
      command: The command that starts the agent.
      read_login: Returns the present login of the access that was handed over; None: there is none.

    Attributes:
      state: The agent's reports, including how to reach the proxy.
    """

    def __init__(
        self,
        start: Start,
        *,
        log: Path,
        on_event: Sink,
        on_state: Callable[[], None] | None = None,
        command: Sequence[str] = AGENT_COMMAND,
        read_login: Callable[[], Login] | None = None,
    ) -> None:
        self.log = log
        self._start = start
        self._on_event = on_event
        self._on_state = on_state
        self._command = command
        self._read_login = read_login
        self._changed = threading.Condition()
        self.state = AgentState(Snapshot(name=start.request.name, phase=Phase.NEW))
        self._lost = False
        self._how_lost = ""
        self._misused: SharedPathwaysError | None = None
        self._ids = itertools.count(1)
        self._sending = threading.Lock()
        self._closed = False
        self._released = False
        began = time.monotonic()
        self._reader = threading.Thread(target=self._read, name="sps-agent", daemon=True)
        self._process, self._socket = launch_agent(log, command)
        self._opened = os.fstat(self._socket.fileno())
        self._answers: LoginAnswers | None = None
        try:
            if read_login is not None:
                self._answers = LoginAnswers(read_login, self._send)
            self._reader.start()
            self._send(start.to_json())
        except BaseException:
            self._let_go()
            raise
        self.launch_s = time.monotonic() - began

    @property
    def snapshot(self) -> Snapshot:
        """The session's state that the agent last reported."""
        return self.state.snapshot

    @property
    def pid(self) -> int:
        """The id of the agent's process."""
        return self._process.pid

    @property
    def agent_alive(self) -> bool:
        """Whether the agent runs and is connected; without it, work continues unsupervised."""
        return not (self._lost or self.state.has_ended or self._released)

    @property
    def failure(self) -> SharedPathwaysError | None:
        """The session's error; None if it did not fail."""
        return self._misused or self.state.failure

    def wait(
        self, reached: Callable[[Snapshot], bool], timeout: float, tick: Callable[[], object]
    ) -> Snapshot:
        """Waits until the session reaches a state; a signal handler's exception propagates.

        Args:
          reached: Returns whether the state is reached.
          timeout: Seconds; may be infinite if the agent itself has a deadline.
          tick: Called a few times per second meanwhile.

        Raises:
          SharedPathwaysError: The session failed.
          ConnectionClosed: The session ended without an error.
          AgentLost: The agent ended.
          TimeoutError: The timeout expired.
        """
        self.check_thread()
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                self._raise_if_over()
                if reached(self.snapshot):
                    return self.snapshot
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{self.snapshot.name} is still at {self.snapshot.phase}")
                began, planned = time.monotonic(), min(left, _LOOK_S)
                self._changed.wait(planned)
            stalled(time.monotonic() - began - planned)
            tick()

    def wait_for_failure(self, timeout: Timeout) -> SharedPathwaysError | None:
        """Returns the session's error, after waiting for the agent to report it."""
        deadline = timeout.deadline()
        with self._changed:
            while not self.failure and self.agent_alive and deadline.left_s:
                deadline.step(self._changed.wait)
        return self.failure

    def _raise_if_over(self) -> None:
        if failure := self.failure:
            # The agent is still deleting; `close` waits for that.
            raise failure
        if self.state.has_ended or self.snapshot.ended:
            raise ConnectionClosed(f"{self.snapshot.name} has ended")
        if self._lost:
            raise AgentLost(
                f"{self.snapshot.name} is not looked after any more: {self._how_lost}",
                hint=f"the agent's log is {self.log}",
            )

    def logs(self, lines: int) -> list[str]:
        """Returns the last lines of the proxy's log; raises an error if they are not available."""
        self.check_thread()
        number = next(self._ids)
        self._send({"type": "logs", "id": number, "lines": lines})
        with self._changed:
            self._changed.wait_for(
                lambda: number in self.state.replies or not self.agent_alive,
                timeouts.AGENT_LOG_REPLY.s,
            )
            reply = self.state.replies.pop(number, None)
        if reply is None:
            raise AgentLost(f"the agent of {self.snapshot.name} does not answer")
        if "error" in reply:
            raise from_json(reply["error"])
        return list(reply["lines"])

    def check_thread(self) -> None:
        """Raises RuntimeError on the thread of event callbacks, which must not block."""
        if threading.current_thread() is self._reader:
            raise RuntimeError("an event callback must not call close() or wait()")

    def request_end(self, reason: str) -> None:
        """Has the agent end the session, without waiting; `close` must follow."""
        if self._has_descriptor():
            self._send({"type": "close", "reason": reason})
            return
        # The program closed descriptors that are not its own, as daemons do. To the agent this
        # signal means the same.
        self._misused = ConnectionClosed(
            f"this program has closed file descriptors of the connection {self.snapshot.name}",
            hint="connect after the program has become a daemon, or has closed them for another "
            "reason",
        )
        self._process.terminate()

    def _has_descriptor(self) -> bool:
        """Returns whether the number of this side's descriptor still means its socket."""
        try:
            return os.path.samestat(os.fstat(self._socket.fileno()), self._opened)
        except OSError:
            return False

    def close(self, reason: str, patience_s: float | None = None) -> CleanupError | None:
        """Ends the session and waits until everything is deleted; a second call does nothing.

        If the agent is gone, a new one deletes the session's leftovers by the journal.

        Args:
          reason: The reason, for logs and events.
          patience_s: Seconds to wait, after which the agent continues by itself; None: its limit
            for the deletion.

        Returns:
          The error for things that could not be deleted; None: all were deleted.
        """
        self.check_thread()
        if self._closed:
            return None
        self._closed = True
        try:
            self.request_end(reason)
            limit = self._start.delete_timeout_s + timeouts.AGENT_DELETION_SLACK.s
            with self._changed:
                self._changed.wait_for(lambda: not self.agent_alive, patience_s or limit)
        finally:
            self._let_go()
        if self.state.has_ended:
            return self._after_a_proper_end()
        if not self._lost:
            # (The agent hangs, or needs more time.)
            return self._left_over(f"proxy {self.snapshot.name}")
        return clean_up_sessions(
            Path(self._start.journal),
            [self._start.session],
            self.log,
            self._command,
            handed_over=self._handed_over_now(),
        )

    def _handed_over_now(self) -> HandedOver | None:
        found = self._start.handed_over
        if found is None or self._read_login is None:
            return found
        # (Otherwise the first login may still do.)
        with contextlib.suppress(SharedPathwaysError):
            return dataclasses.replace(found, login=self._read_login())
        return found

    def _after_a_proper_end(self) -> CleanupError | None:
        if left := self.snapshot.left:
            return self._left_over(left)
        if self.failure is None:
            with contextlib.suppress(OSError):
                self.log.unlink()
        return None

    def _left_over(self, what: str) -> CleanupError:
        return left_over([what], self.snapshot.name, self._start.home)

    def _let_go(self) -> None:
        """Releases this side's resources: the thread, the socket, the agent's process entry."""
        self._released = True
        if self._has_descriptor():
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if self._reader.ident is not None:
                self._reader.join()
            self._socket.close()
        else:
            # (By now the number may be that of another file. The thread ends with the agent.)
            self._socket.detach()
        if self._answers is not None:
            self._answers.close()
        # (The agent may be hanging, or still deleting.)
        self._end_link()
        if (self.state.has_ended and not self.state.lingers) or self._lost:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeouts.AGENT_EXIT.s)
        if self._process.poll() is None:
            # It is still deleting, and ends after that.
            let_linger(self._process)

    def _send(self, message: Mapping[str, Any]) -> None:
        # The thread that reads notices that the agent is gone.
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(encode(message), getattr(socket, "MSG_NOSIGNAL", 0))

    def _read(self) -> None:
        decoder = Decoder()
        unreadable = False
        try:
            while data := self._socket.recv(1 << 16):
                for message in decoder.feed(data):
                    self._take(message)
        except OSError as error:
            _log.debug("the agent's stream: %s", error)
        except (MessageError, LookupError, TypeError, ValueError):
            # (For example from an agent of another version of this package.)
            _log.exception("the agent of %s sent an unreadable message", self.snapshot.name)
            unreadable = True
        # (After `_let_go` closed the socket, the agent may still be deleting.)
        if not (self.state.has_ended or self._released):
            how = "sent an unreadable message" if unreadable else f"ended{self._exit_text()}"
            self._lose_agent(f"the agent {how}")

    def _take(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "event":
            self._notify(Event.from_dict(message["event"]))
            return
        if message["type"] == "login":
            if self._answers is not None:
                self._answers.ask()
            return
        with self._changed:
            self.state.update(message)
            self._changed.notify_all()
        if message["type"] in {"state", "ended"}:
            self._notify_state()

    def _lose_agent(self, how: str) -> None:
        pod = self.snapshot.pod
        with self._changed:
            self._lost = True
            self._how_lost = how
            if pod and not self._closed:
                # The tunnel to a pod goes through the agent.
                self.state.refusal = TunnelError(
                    f"the connection to pod {pod} is lost: {how}",
                    pod=pod,
                    cause=how,
                    hint=f"connect again; the agent's log is {self.log}",
                )
            self._changed.notify_all()
        self._end_link()
        if not self._closed:
            reason = f"{how}; its log is {self.log}"
            self._notify(
                ev.AgentLost(
                    tenant=self.snapshot.name, reason=reason, pid=self._process.pid, pod=pod
                )
            )

    def _exit_text(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeouts.AGENT_EXIT.s)
            return f" by signal {-code}" if code < 0 else f" with exit code {code}"
        return ""

    def _end_link(self) -> None:
        """Records that the link is not resumed any more, as far as this process is concerned."""
        if self.snapshot.link is not None:
            with self._changed:
                self.state.snapshot = dataclasses.replace(self.snapshot, link=None)
            self._notify_state()

    def _notify_state(self) -> None:
        if self._on_state is None:
            return
        try:
            self._on_state()
        except Exception:  # noqa: BLE001 - a failing display must not stop the session
            _log.exception("a state callback failed")

    def _notify(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 - it is the user's code
            _log.exception("an event callback failed at %s", event.kind)
