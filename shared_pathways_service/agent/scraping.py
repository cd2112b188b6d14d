"""Serves the metrics of an agent's session to a scraper (docs/metrics.md)."""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from shared_pathways_service.agent.messages import Start
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import MetricsUnavailable
from shared_pathways_service.homes.base import HomeCounters
from shared_pathways_service.metrics.families import Family, Sample
from shared_pathways_service.session.messages import Phase, Snapshot
from shared_pathways_service.version import __version__

__all__ = ["SessionMeter", "served"]

_PREFIX = "sps_agent"
#: The name, among those of the phases, for the seconds of the whole start.
_TOTAL = "total"
_PHASES = frozenset(Phase)
#: States of virtual slices.
_SLICE_STATES = ("placed", "unplaced")

_log = logging.getLogger(__name__)


class SessionMeter:
    """Collects the metrics of one session."""

    def __init__(self, start: Start, counters: Callable[[], HomeCounters]) -> None:
        self._start = start
        self._counters = counters
        self._snapshot = Snapshot(name=start.request.name, phase=Phase.NEW)
        self._events: collections.Counter[str] = collections.Counter()
        self._last_event_at: float | None = None

    def observe(self, snapshot: Snapshot) -> None:
        """Records the session's state."""
        self._snapshot = snapshot

    def count(self, event: Event) -> None:
        """Counts an event of the session."""
        self._events[event.kind] += 1
        self._last_event_at = time.time()

    def families(self) -> list[Family]:
        """Returns all metrics."""
        home = self._start.home.name
        labels = {"version": __version__, "name": self._start.request.name, "home": home}
        return [
            Family(_PREFIX, "info", "The connection.", [Sample(1, labels)]),
            *self._of_session(),
            *self._of_home(self._counters()),
        ]

    def _of_session(self) -> list[Family]:
        now = self._snapshot
        slices = collections.Counter(view.state for view in now.slices)
        took = {name: seconds for name, seconds in now.timings.items() if name in _PHASES}
        return [
            _gauge(
                "phase",
                "1 for the phase that the session is in, 0 for the others.",
                [Sample(now.phase is phase, {"phase": phase.value}) for phase in Phase],
            ),
            _gauge(
                "phase_seconds",
                "How long each phase took that is over.",
                [Sample(seconds, {"phase": name}) for name, seconds in took.items()],
                "seconds",
            ),
            _gauge(
                "start_seconds",
                "From the beginning until the connection served; nothing before that.",
                _known(now.timings.get(_TOTAL)),
                "seconds",
            ),
            _gauge(
                "slices",
                "Virtual slices.",
                [Sample(slices[state], {"state": state}) for state in _SLICE_STATES],
            ),
            _gauge(
                "link_lost",
                "1 while the link to the proxy is lost, and work waits for it.",
                [Sample(now.waits_for_link)],
            ),
            _gauge("preempted", "1 while its slices are somebody else's.", [Sample(now.preempted)]),
            _gauge(
                "queue_position",
                "Its place in the queue; 0: it is in none.",
                [Sample(now.position or 0)],
            ),
            _counter(
                "events",
                "Events of the session.",
                [Sample(count, {"kind": kind}) for kind, count in self._events.items()],
            ),
            _gauge(
                "last_event_timestamp_seconds",
                "When the last of them was, in seconds since the epoch.",
                _known(self._last_event_at),
                "seconds",
            ),
        ]

    def _of_home(self, home: HomeCounters) -> list[Family]:
        return [
            _gauge(
                "last_beat_timestamp_seconds",
                "When the deadline of the proxy's Job was last moved on, likewise.",
                _known(home.beat_at),
                "seconds",
            ),
            _counter(
                "manager_reconnects",
                "Times that the resource manager was listened to anew.",
                [Sample(home.manager_reconnects)],
            ),
            _gauge(
                "tunnel_connections",
                "Open connections through the tunnel.",
                [Sample(home.tunnel_connections)],
            ),
            _counter(
                "tunnel_connections_opened",
                "Connections that went through it.",
                [Sample(home.tunnel_opened)],
            ),
            _counter(
                "tunnel_redials",
                "Dials that followed one that failed.",
                [Sample(home.tunnel_redials)],
            ),
            _counter(
                "tunnel_sent_bytes",
                "What went to the proxy.",
                [Sample(home.tunnel_sent_bytes)],
                "bytes",
            ),
            _counter(
                "tunnel_received_bytes",
                "What came from the proxy.",
                [Sample(home.tunnel_received_bytes)],
                "bytes",
            ),
            *_of_link(home),
        ]


@contextlib.asynccontextmanager
async def served(
    meter: SessionMeter, start: Start, send: Callable[[Mapping[str, Any]], None]
) -> AsyncIterator[str]:
    """Serves the metrics for the length of the block; yields their URL, or an empty text.

    If that fails, the session continues without them, because metrics must not decide whether a
    program runs. An event reports the failure to the client.
    """
    if start.metrics_port is None:
        yield ""
        return
    # Imported here because only sessions with served metrics need aiohttp.
    from shared_pathways_service.metrics.http_server import serve_metrics  # noqa: PLC0415

    address = start.metrics_address
    async with contextlib.AsyncExitStack() as undo:
        url = ""
        try:
            serving = await serve_metrics(
                meter.families, address=address, port=start.metrics_port, token=None
            )
        except SharedPathwaysError as error:
            reason = f"{error.message}; SPS_AGENT_METRICS_PORT=0 takes any port that is free"
            _log.warning("%s", reason)
            event = MetricsUnavailable(tenant=start.request.name, reason=reason)
            send({"type": "event", "event": event.to_dict()})
        else:
            undo.push_async_callback(serving.close)
            url = serving.url
        yield url


def _of_link(home: HomeCounters) -> list[Family]:
    return [
        _counter(
            "link_losses", "Times that the link had no connection left.", [Sample(home.link_losses)]
        ),
        _gauge(
            "link_carriers",
            "Connections of the link that work.",
            [Sample(home.link_carriers)],
        ),
        _counter("link_failed_dials", "Its dials that failed.", [Sample(home.link_failed_dials)]),
        _gauge(
            "link_replay_bytes",
            "What it keeps until the other end has acknowledged it.",
            [Sample(home.link_replay_bytes)],
            "bytes",
        ),
        _counter(
            "link_early_answers",
            "JAX's lookups of values that it answered without a round trip.",
            [Sample(home.link_early_answers)],
        ),
    ]


def _known(value: float | None) -> list[Sample]:
    return [] if value is None else [Sample(value)]


def _gauge(name: str, text: str, samples: list[Sample], unit: str = "") -> Family:
    return Family(f"{_PREFIX}_{name}", "gauge", text, samples, unit)


def _counter(name: str, text: str, samples: list[Sample], unit: str = "") -> Family:
    return Family(f"{_PREFIX}_{name}", "counter", text, samples, unit)
