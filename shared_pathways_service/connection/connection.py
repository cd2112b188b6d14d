"""Defines `Connection`, from its start to its close."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import time
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn, Self

from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.agent.request import start_of
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.connection import leaving, one_live, views
from shared_pathways_service.connection.interrupts import InterruptWatch
from shared_pathways_service.connection.logging_lines import LogLines
from shared_pathways_service.connection.progress_display import Progress
from shared_pathways_service.connection.reported_state import ReportedState
from shared_pathways_service.errors import CleanupError, ConnectionClosed, SharedPathwaysError
from shared_pathways_service.events import Event, session
from shared_pathways_service.kube.handed_over import Login
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime import allocator
from shared_pathways_service.runtime.descriptors import check_room
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.session.messages import Snapshot

__all__ = ["Connection"]

_FOREVER = float("inf")


class Connection(ReportedState):
    """Slices of a service, for a ``with`` block or from `start` to `close`.

    Created by `isc_pathways.connect`. A process has at most one started connection.

    Leaving the block deletes the proxy and restores JAX. If the proxy ended before that, leaving
    raises the error that explains it (usually `ProxyFailed`): from JAX's error if that ended the
    block, and also after a block without errors, because dispatched work that was not fetched is
    lost. Errors of other kinds propagate, with a note.
    """

    def __init__(self, request: SessionRequest) -> None:
        super().__init__(request, self.close)
        self._settings = Settings.load(profile=request.client.profile)
        self._process = os.getpid()
        self._progress = Progress(quiet=self._settings.log_level in ("ERROR", "CRITICAL"))
        self._undo = contextlib.ExitStack()
        self._warnings: list[str] = []
        self._left: CleanupError | None = None
        self._reason = ""
        self._patience_s: float | None = None
        self._failure: SharedPathwaysError | None = None
        self._raised: SharedPathwaysError | None = None
        self._is_given_up = False

    def start(self) -> Connection:
        """Starts the connection and returns it when the slices are placed (or the proxy answers).

        If a connection with the same request is live in this process, for example because a
        notebook cell is run again, returns that one, which calls this one's `on_event` from then
        on; a failed one is closed first.

        Raises:
          InvalidRequestError: A connection with another request is live in this process, this
            process was forked from one with a live connection, multiprocessing imports this main
            module in a child process, or the service has no such slices.
          PreflightError: There is no service, or it does not accept the request.
          SlicesTaken: Other tenants hold the slices; `holders` names them.
          PlacementTimeout: The slices were not placed in time.
          ProxyFailed: The proxy ended, or did not begin to serve.
          TunnelError: The proxy cannot be reached.
        """
        live = one_live.live_owner()
        if isinstance(live, Connection) and live._take_over(self._request):  # noqa: SLF001 - its own
            return live
        return self._start()

    def _start(self) -> Self:
        live = one_live.live_owner()
        if isinstance(live, Connection) and live._is_given_up:  # noqa: SLF001 - its own
            # (The interrupt that followed can come before the clean-up of its block.)
            self._print_left(live._end("it was given up"))  # noqa: SLF001 - its own
        one_live.claim(self, self.proxy_job_name)
        self._is_given_up = False
        self._process = os.getpid()
        self._agent = self._failure = self._raised = None
        self._timings = {}
        self._warnings = []
        self._lines = LogLines(max(len(self._request.tenant.virtual_slices), 1))
        self._start_time = time.time()
        self._undo.callback(one_live.release, self)
        try:
            self._begin()
        except BaseException as error:
            self._progress.end()
            left = self._end("connect() did not succeed")
            self._raised = self._failure
            for note in (*self._warnings, *([] if left is None else [str(left)])):
                error.add_note(note)
            raise
        self._progress.end("connected", self._page)
        self._lines.report_attached(self.cluster)
        return self

    def _page(self) -> str | None:
        """Returns the address of a page of the service of this machine, while there is one."""
        if self._request.service.home != "embedded":
            return None
        from shared_pathways_service.runtime.embedded.served_page import (  # noqa: PLC0415
            served_page,  # (slow to import, and needed in a terminal only)
        )

        return served_page(self._settings.runtime_dir)

    def close(self) -> None:
        """Deletes the proxy, releases the slices, and restores JAX; a second call does nothing.

        It also does nothing in a forked child, because the connection is the parent's.

        Raises:
          SharedPathwaysError: The connection failed before, and the error was not raised yet.
          CleanupError: Something could not be deleted.
        """
        if self._is_forked():
            return
        left = self._end("closed")
        if self._failure is not None and self._raised is None:
            self._raised = self._failure
            if left is not None:
                self._failure.add_note(str(left))
            raise self._failure
        if left is not None:
            raise left

    def __enter__(self) -> Self:
        return self._start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        if self._is_forked():
            return
        if self._agent is not None and leaving.is_of_lost_proxy(error):
            self._agent.wait_for_failure(timeouts.PROXY_END_REPORT)
        left = self._end(f"the block raised {type(error).__name__}")
        failure = self._failure if self._raised is None else None
        if left is not None:
            # The note belongs to the error that ends the traceback.
            (failure if failure and leaving.is_of_jax(error) else error).add_note(str(left))
        if failure is not None:
            self._raised = failure
            leaving.report(error, failure)

    def __reduce__(self) -> NoReturn:
        """Refuses pickling and copying, with a reason instead of the name of a lock in here."""
        raise TypeError(
            f"the connection {self.proxy_job_name} cannot be pickled or copied, because it belongs "
            "to one process. hint: pass functions to other processes that do not refer to it; "
            "processes that are started during a connection use its slices by their environment"
        )

    def logs(self, lines: int = 100) -> list[str]:
        """Returns the last lines of the proxy's log.

        Args:
          lines: Maximum number of lines.

        Raises:
          ConnectionClosed: The connection is not started, or has ended.
          SharedPathwaysError: They are not available.
        """
        return self._live_agent().logs(lines)

    def wait_until_placed(self, timeout: float | None = None) -> None:
        """Waits until the slices are placed, after ``wait="ready"``, or placed again.

        Again means after a preemption or loss that was reported to this process (see `on_event`).
        JAX's error may precede that report.

        Args:
          timeout: Seconds; None: as long as the service permits.

        Raises:
          PlacementTimeout: The timeout expired.
          SlicesTaken: The service gave up waiting.
          SharedPathwaysError: The connection failed meanwhile.
          ConnectionClosed: The connection is not started, or has ended.
        """
        agent = self._live_agent()
        gang = self._request.tenant.gang
        limit = _FOREVER if timeout is None else timeout
        self._progress.begin()
        try:
            agent.wait(lambda snapshot: snapshot.is_placed_now(gang), limit, self._tick)
        except TimeoutError:
            raise views.not_placed(agent.snapshot, gang, limit) from None
        except SharedPathwaysError:
            self._raised = agent.failure
            raise
        finally:
            self._progress.end()

    def _take_over(self, request: SessionRequest) -> bool:
        """Returns whether this live connection matches the request; if it failed, closes it."""
        is_live = self._jax.is_attached and not self._is_given_up
        if not is_live or not request.matches(self._request):
            return False
        failure = self._agent.failure if self._agent else None
        if failure is None:
            self._request = dataclasses.replace(self._request, client=request.client)
            return True
        self._progress.print_line(f"{self.proxy_job_name} had failed: {failure}; connecting again")
        self._print_left(self._end("its request is started again"))
        return False

    def _live_agent(self) -> AgentSession:
        if self._agent is None or self._agent.snapshot.ended:
            raise ConnectionClosed(f"the connection {self.proxy_job_name} is not live")
        return self._agent

    def _is_forked(self) -> bool:
        return self._process != os.getpid()

    def _begin(self) -> None:
        began = time.monotonic()
        check_room()
        self._progress.begin()
        orders = start_of(self._request, self._settings)
        log = self._settings.state_dir / "agents" / f"{self.proxy_job_name}.log"
        agent = self._agent = AgentSession(
            orders,
            log=log,
            on_event=self._take_event,
            on_state=self._take_state,
            read_login=self._login if orders.handed_over else None,
        )
        self._undo.callback(self._close_agent)
        atexit.register(self._at_exit)
        self._undo.callback(atexit.unregister, self._at_exit)
        self._timings["agent"] = agent.launch_s
        with self._timed("import_jax"):
            self._jax.import_jax(self._undo, self._tick)
        agent.wait(self._reached, _FOREVER, self._tick)
        with self._timed("attach"):
            self._attach(agent)
        self._timings["connect"] = time.monotonic() - began

    def _login(self) -> Login:
        # Imported here because only requests with such a client need it.
        from shared_pathways_service.kube.official_client import login_of  # noqa: PLC0415

        # (Of the request that took over last.)
        return login_of(self._request.client.api_client)

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._timings[what] = time.monotonic() - began

    def _reached(self, snapshot: Snapshot) -> bool:
        return snapshot.ready and (snapshot.placed or self._request.wait == "ready")

    def _attach(self, agent: AgentSession) -> None:
        ignored = self._jax.attach(agent)
        self._undo.callback(self._jax.detach)
        self._warnings += ignored
        if agent.snapshot.pod:
            watch = InterruptWatch(
                lost_link=self._lost_link, say=self._progress.print_line, give_up=self._give_up
            )
            self._undo.callback(watch.stop)
            watch.start()
        for warning in self._warnings:
            warnings.warn(warning, stacklevel=4)

    def _tick(self) -> None:
        if self._board.is_displayed:
            self._board.tick()
        else:
            self._progress.tick()

    def _lost_link(self) -> LinkView | None:
        snapshot = self._snapshot
        return snapshot.link if snapshot.waits_for_link else None

    def _give_up(self) -> None:
        """Ends the session while the main thread waits in JAX."""
        self._is_given_up = True
        if self._agent is not None:
            self._agent.request_end("it was given up by an interrupt")
        self._jax.cut()

    def _take_event(self, event: Event) -> None:
        self._progress(event)
        if isinstance(event, session.ServiceWarning) and event.reason:
            self._warnings.append(event.reason)
        if self._request.client.on_event is not None and not self._is_forked():
            self._request.client.on_event(event)

    def _take_state(self) -> None:
        self._board.update(self._snapshot)
        self._progress.update(self._snapshot)
        if not self._is_forked():
            self._lines.update(self._snapshot)

    def _end(self, reason: str) -> CleanupError | None:
        """Undoes all completed steps; returns the error for things that could not be deleted."""
        if self._is_forked():
            return None
        if self._agent is not None:
            self._agent.check_thread()
        self._reason = reason
        undo, self._undo = self._undo, contextlib.ExitStack()
        undo.close()
        # JAX's freed buffers are scattered over the heaps of many threads.
        allocator.trim()
        if self._agent is not None:
            # Read last, because the agent may report a failure while it is being closed.
            self._failure = self._failure or self._agent.failure
        left, self._left = self._left, None
        return left

    def _close_agent(self) -> None:
        if self._agent is not None:
            self._left = self._agent.close(self._reason, self._patience_s)

    def _at_exit(self) -> None:
        self._patience_s = timeouts.AGENT_AT_EXIT.s
        # At exit there is no caller that could handle an error.
        self._print_left(self._end("the process ended"))

    def _print_left(self, left: CleanupError | None) -> None:
        if left is not None:
            self._progress.print_line(str(left))
