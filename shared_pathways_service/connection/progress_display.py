"""Displays the progress of connect(): one animated line on a terminal, few plain lines elsewhere.

A sink of events like any other; `wait_text` has the texts. It has no thread: the waiting code calls
`tick`. A lost link is displayed by `link_line`, which has one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

from shared_pathways_service.connection.link_line import LinkLine
from shared_pathways_service.events import Event, proxy, tenants
from shared_pathways_service.events import session as ev
from shared_pathways_service.runtime.terminal import LastingStream, lasting_console
from shared_pathways_service.session.holder_text import holdings
from shared_pathways_service.session.messages import Snapshot

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

__all__ = ["Progress", "wait_text", "warning_text"]

#: Seconds of a step before a line is printed about it; a queue is reported at once.
_LINE_AFTER_S = 1.0
#: Seconds before a terminal shows anything.
_SHOW_AFTER_S = 0.3
_PREFIX = "sps: "

_STEPS: Mapping[type[Event], str] = {
    ev.PreflightStarted: "looking for the service",
    ev.CreateStarted: "creating the proxy",
    ev.StartStarted: "waiting for the proxy to serve",
    ev.TunnelStarted: "reaching the proxy",
    ev.ProbeStarted: "reaching the proxy",
    ev.PlaceStarted: "waiting for the slices",
    ev.DeleteStarted: "taking the proxy down",
}
#: Texts of steps that may take long for a known reason.
_WAITING: Mapping[type[Event], str] = {
    ev.ServiceWaiting: "waiting for the service",
    ev.ProxyWaiting: "waiting for the proxy",
}
#: Events after which a request is not in a queue.
_OUT_OF_QUEUE = (
    tenants.TenantDequeued,
    tenants.TenantRunning,
    tenants.SlicePlaced,
    ev.DeleteStarted,
)


def wait_text(event: Event) -> str | None:
    """Returns the description of the wait after an event; None if the event does not change it."""
    if type(event) in _WAITING and event.reason:
        return f"{_WAITING[type(event)]}: {event.reason}"
    if not isinstance(event, tenants.TenantQueued):
        return _STEPS.get(type(event))
    # (Google's resource manager reports no positions.)
    text = "in the queue" + ("" if event.position is None else f" at position {event.position}")
    if event.reason:
        text += f": {event.reason}"
    return f"{text}; {holdings(event.holders)}" if event.holders else text


def warning_text(event: Event) -> str | None:
    """Returns the warning to print for an event outside of a wait; None: no warning."""
    why = f" ({event.reason})" if event.reason else ""
    line: str | None = None
    match event:
        case ev.AgentLost():
            goes_on = "The tunnel is lost" if event.pod else "Work goes on"
            line = f"{event.reason}. {goes_on}; closing the connection still cleans up."
        case ev.ProxyExited() | ev.ProxyDeleted():
            line = f"the proxy {event.tenant} has ended{why}"
        case ev.TunnelBroken():
            line = f"the tunnel to the proxy {event.tenant} broke{why}"
        case ev.HomeLost():
            line = f"the service of {event.tenant} is gone{why}"
        case ev.ServiceWarning():
            line = event.reason or ""
        case ev.MetricsUnavailable():
            line = f"no metrics are sent{why}"
        case tenants.SliceUnplaced():
            line = f"slice {event.slice} is lost{why}; waiting for another in its place"
        case tenants.SlicePlaced():
            line = f"slice {event.slice} is on {event.slice_id} now"
        case tenants.TenantEvent():
            line = _warned_of_tenant(event, why)
    return line


def _warned_of_tenant(event: tenants.TenantEvent, why: str) -> str | None:
    line: str | None = None
    match event:
        case tenants.TenantPreempting():
            soon = "" if event.grace_s is None else f" in {event.grace_s:.2g} s"
            line = f"its slices will be taken{soon}{why}"
        case tenants.TenantPreemptingWithdrawn():
            line = "its slices are not taken after all"
        case tenants.TenantPreempted():
            line = f"its slices were taken{why}; it waits, and comes back by itself"
        case tenants.TenantIdling():
            line = _idling(event)
        case tenants.TenantIdlingWithdrawn():
            line = "it works again, and its slices are not taken back"
        case tenants.TenantIdled():
            line = f"its slices were taken back{why}; it gets others when it computes again"
        case proxy.MemoryNearLimit():
            line = f"its proxy is near its memory limit{why}"
        case proxy.ExecutorSlow():
            line = f"an executor is slow{why}"
        case proxy.ExecutorSlowEnded():
            line = f"an executor is not slow any more{why}"
    return line


def _idling(event: tenants.TenantIdling) -> str:
    idle_s, release_s = event.idle_s, event.release_s
    if idle_s is None or release_s is None:
        return "it is idle, and its slices will be taken back"
    return f"it is idle for {idle_s:.2g} s, and its slices will be taken back in {release_s:.2g} s"


class Progress:
    """The sink of one connection, by default on standard error."""

    def __init__(self, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        # (A program without a terminal may have no standard error at all.)
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._quiet = quiet or self._stream is None
        self._lock = threading.Lock()
        self._waiting = False
        self._step = ""
        self._queue = ""
        self._printed = ""
        self._live: Live | None = None
        self._spinner: Spinner | None = None
        self._began = 0.0
        self._since = 0.0
        self._link = LinkLine(self._stream, _PREFIX, lambda: not self._waiting)

    def begin(self) -> None:
        """Begins a wait, which lasts until `end`."""
        self._link.clear()
        with self._lock:
            self._waiting = True
            self._began = self._since = time.monotonic()
            self._step, self._queue, self._printed = "starting", "", ""

    def update(self, snapshot: Snapshot) -> None:
        """Processes the session's present state, on any thread."""
        if not self._quiet:
            self._link.update(snapshot.link, is_waiting=snapshot.waits_for_link)

    def __call__(self, event: Event) -> None:
        """Processes an event, on any thread."""
        with self._lock:
            if self._waiting and self._take(event):
                return
            warning = None if self._waiting else warning_text(event)
        if warning and not self._quiet:
            self.print_line(warning)

    def _take(self, event: Event) -> bool:
        """Returns whether the event changed the description of the wait."""
        text = wait_text(event)
        before = self._text
        if isinstance(event, tenants.TenantQueued):
            self._queue = text or ""
        elif text:
            self._step = text
        if isinstance(event, _OUT_OF_QUEUE):
            self._queue = ""
        if self._text != before:
            self._since = time.monotonic()
        return text is not None

    @property
    def _text(self) -> str:
        # Steps continue while a request is queued (its proxy starts), but the queue is the cause.
        return self._queue or self._step

    def tick(self) -> None:
        """Shows the progress; the waiting code calls it a few times per second."""
        if self._quiet:
            return
        now = time.monotonic()
        if LastingStream(self._stream).isatty():
            if now - self._began > _SHOW_AFTER_S or self._queue:
                self._show_live()
            return
        with self._lock:
            late = now - self._since > _LINE_AFTER_S
            due = bool(late or self._queue) and self._text != self._printed
            text = self._printed = self._text if due else self._printed
        if due:
            self.print_line(text)

    def end(self, outcome: str = "", page: Callable[[], str | None] = lambda: None) -> None:
        """Ends a wait; prints the outcome if the wait printed anything.

        Args:
          outcome: The outcome.
          page: Finds the address of a page that shows the service, which a terminal shows then: a
            log may be read by others, who could use the token in it.
        """
        with self._lock:
            self._waiting = False
            spoke = bool(self._printed) or self._live is not None
            live, self._live = self._live, None
        if live is not None:
            live.stop()
        if outcome and spoke:
            self.print_line(f"{outcome} after {time.monotonic() - self._began:.1f} s")
            if LastingStream(self._stream).isatty() and (url := page()) is not None:
                self.print_line(f"page: {url}")

    def _show_live(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - slow to import, and seldom needed
        from rich.spinner import Spinner  # noqa: PLC0415

        with self._lock:
            lost = self._link.lost_link
            text = f"{self._text} ({time.monotonic() - self._began:.0f} s)"
            text = text if lost is None else lost.text(time.time())
        if self._live is None:
            self._live = Live(
                console=lasting_console(self._stream),
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._spinner = self._spinner or Spinner("dots")
        self._spinner.update(text=text)
        self._live.update(self._spinner, refresh=True)

    def print_line(self, text: str) -> None:
        """Prints a line, also if nothing else was printed."""
        # A closed or broken standard error must not fail a connection.
        self._link.print(text)
