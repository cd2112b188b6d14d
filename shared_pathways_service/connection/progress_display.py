"""What a person sees of connect(): one moving line on a terminal, few plain ones elsewhere.

A sink of events like any other; what it says of each is decided in `told`. Nothing here has a
thread: whoever waits calls `tick`.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from shared_pathways_service.events import Event
from shared_pathways_service.runtime.terminal import LastingStream, lasting_console

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

__all__ = ["Progress", "told", "warned"]

#: Seconds that a step may take before a line is printed about it; a queue is told of at once.
_PATIENCE_S = 1.0
#: Seconds before there is anything to see on a terminal.
_GLANCE_S = 0.3
_PREFIX = "sps: "

_STEPS = {
    "connect.preflight": "looking for the service",
    "connect.create": "creating the proxy",
    "connect.start": "waiting for the proxy to serve",
    "connect.tunnel": "reaching the proxy",
    "connect.probe": "reaching the proxy",
    "connect.place": "waiting for the slices",
    "connect.delete": "taking the proxy down",
}
#: What may take long for a reason that is known.
_WAITING = {"service.waiting": "waiting for the service", "proxy.waiting": "waiting for the proxy"}
#: After these a request waits in no queue.
_OUT_OF_QUEUE = ("tenant.dequeued", "tenant.running", "slice.placed", "connect.delete")


def told(event: Event) -> str | None:
    """Returns what is being waited for after an event; None when the event changes nothing."""
    if event.kind in _WAITING and event.reason:
        return f"{_WAITING[event.kind]}: {event.reason}"
    if event.kind != "tenant.queued":
        return _STEPS.get(event.kind)
    text = f"in the queue at position {event.data.get('position')}"
    if event.reason:
        text += f": {event.reason}"
    holders = str(event.data.get("holders") or "").split("\n")
    return f"{text}; held by {', '.join(holders)}" if any(holders) else text


def warned(event: Event) -> str | None:
    """Returns what a person should hear of an event though nothing is waited for; None: nothing."""
    why = f" ({event.reason})" if event.reason else ""
    goes_on = "The tunnel is lost" if event.data.get("pod") else "Work goes on"
    ended = f"the proxy {event.tenant} has ended{why}"
    grace_s = event.data.get("grace_s")
    soon = f" in {grace_s:.2g} s" if isinstance(grace_s, int | float) else ""
    lines = {
        "agent.lost": f"{event.reason}. {goes_on}; closing the connection still cleans up.",
        "proxy.exited": ended,
        "proxy.deleted": ended,
        "tunnel.broken": f"the tunnel to the proxy {event.tenant} broke{why}",
        "home.lost": f"the service of {event.tenant} is gone{why}",
        "service.warning": event.reason or "",
        "metrics.unavailable": f"no metrics are sent{why}",
        "tenant.preempting": f"its slices will be taken{soon}{why}",
        "tenant.preempting_withdrawn": "its slices are not taken after all",
        "tenant.preempted": f"its slices were taken{why}; it waits, and comes back by itself",
        "tenant.idling": _idling(event),
        "tenant.idling_withdrawn": "it works again, and its slices are not taken back",
        "tenant.idled": f"its slices were taken back{why}; it gets others when it computes again",
        "slice.unplaced": f"slice {event.slice} is lost{why}; waiting for another in its place",
        "slice.placed": f"slice {event.slice} is on {event.data.get('slice_id')} now",
    }
    return lines.get(event.kind)


def _idling(event: Event) -> str:
    idle_s, release_s = event.data.get("idle_s"), event.data.get("release_s")
    if not isinstance(idle_s, int | float) or not isinstance(release_s, int | float):
        return "it is idle, and its slices will be taken back"
    return f"it is idle for {idle_s:.2g} s, and its slices will be taken back in {release_s:.2g} s"


class Progress:
    """The sink of one connection.

    Args:
      stream: Where to write; standard error by default.
      quiet: Whether to write nothing at all.
    """

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

    def begin(self) -> None:
        """Something is waited for from here on, until `end`."""
        with self._lock:
            self._waiting = True
            self._began = self._since = time.monotonic()
            self._step, self._queue, self._printed = "starting", "", ""

    def __call__(self, event: Event) -> None:
        """Takes an event in, on any thread."""
        with self._lock:
            if self._waiting and self._take(event):
                return
            warning = None if self._waiting else warned(event)
        if warning and not self._quiet:
            self._print(warning)

    def _take(self, event: Event) -> bool:
        """Returns whether the event changed what is waited for."""
        text = told(event)
        before = self._text
        if event.kind == "tenant.queued":
            self._queue = text or ""
        elif text:
            self._step = text
        if event.kind in _OUT_OF_QUEUE:
            self._queue = ""
        if self._text != before:
            self._since = time.monotonic()
        return text is not None

    @property
    def _text(self) -> str:
        # Steps go on while a request is queued (its proxy starts), but they are not what keeps it.
        return self._queue or self._step

    def tick(self) -> None:
        """Shows where things are; called a few times a second by whoever waits."""
        if self._quiet:
            return
        now = time.monotonic()
        if self._is_terminal():
            if now - self._began > _GLANCE_S or self._queue:
                self._show_live()
            return
        with self._lock:
            late = now - self._since > _PATIENCE_S
            due = bool(late or self._queue) and self._text != self._printed
            text = self._printed = self._text if due else self._printed
        if due:
            self._print(text)

    def end(self, outcome: str = "") -> None:
        """Nothing is waited for any more; says how it came out if it said anything before."""
        with self._lock:
            self._waiting = False
            spoke = bool(self._printed) or self._live is not None
            live, self._live = self._live, None
        if live is not None:
            live.stop()
        if outcome and spoke:
            self._print(f"{outcome} after {time.monotonic() - self._began:.1f} s")

    def warn(self, text: str) -> None:
        """Says what must not go unheard, however quiet the rest is."""
        self._print(text)

    def _show_live(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - slow to import, and seldom needed
        from rich.spinner import Spinner  # noqa: PLC0415

        with self._lock:
            text = f"{self._text} ({time.monotonic() - self._began:.0f} s)"
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

    def _is_terminal(self) -> bool:
        return LastingStream(self._stream).isatty()

    def _print(self, text: str) -> None:
        # A closed or broken standard error is no reason to fail a connection.
        LastingStream(self._stream).print(f"{_PREFIX}{text}")
