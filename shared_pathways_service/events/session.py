"""Events of one connection: its agent's steps, and changes of its service and proxy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.events.base import Event

__all__ = [
    "AgentEvent",
    "AgentLost",
    "CreateDone",
    "CreateStarted",
    "DeleteStarted",
    "HomeLost",
    "LinkDialFailed",
    "LinkLost",
    "LinkResumed",
    "MetricsUnavailable",
    "PlaceDone",
    "PlaceStarted",
    "PreflightDone",
    "PreflightStarted",
    "ProbeDone",
    "ProbeStarted",
    "ProxyDeleted",
    "ProxyEvent",
    "ProxyExited",
    "ProxyLost",
    "ProxyServing",
    "ProxyWaiting",
    "ServiceEvent",
    "ServiceWaiting",
    "ServiceWarning",
    "SessionEnded",
    "SessionEnding",
    "SessionFailed",
    "SessionReady",
    "SessionServing",
    "StartDone",
    "StartStarted",
    "StepDone",
    "StepStarted",
    "TunnelBroken",
    "TunnelDone",
    "TunnelStarted",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentEvent(Event):
    """An event that the agent of a connection observed."""

    source: str = "agent"


# ---- steps of a connection


class StepStarted(AgentEvent):
    """A connection began its next step."""


class StepDone(AgentEvent):
    """A connection completed a step, in `duration_s`."""


class PreflightStarted(StepStarted, name="connect.preflight"):
    """The agent looks for the service."""


class PreflightDone(StepDone, name="connect.preflight.done"):
    """The service exists, and accepts the request."""


class CreateStarted(StepStarted, name="connect.create"):
    """The agent creates the proxy."""


class CreateDone(StepDone, name="connect.create.done"):
    """The proxy exists."""


class StartStarted(StepStarted, name="connect.start"):
    """The agent waits for the proxy to serve."""


class StartDone(StepDone, name="connect.start.done"):
    """The proxy serves."""


class TunnelStarted(StepStarted, name="connect.tunnel"):
    """The agent makes the proxy reachable from this machine."""


class TunnelDone(StepDone, name="connect.tunnel.done"):
    """The proxy has an address on this machine."""


class ProbeStarted(StepStarted, name="connect.probe"):
    """The agent probes the proxy."""


class ProbeDone(StepDone, name="connect.probe.done"):
    """The proxy answered."""


class PlaceStarted(StepStarted, name="connect.place"):
    """The agent waits for the slices."""


class PlaceDone(StepDone, name="connect.place.done"):
    """Enough slices are placed, or the client did not request to wait for them."""


class DeleteStarted(StepStarted, name="connect.delete"):
    """The agent deletes the proxy."""


class SessionReady(AgentEvent, name="connect.ready"):
    """The proxy answers, `duration_s` after the start of the connection."""


class SessionServing(AgentEvent, name="connect.serving"):
    """The connection is complete, `duration_s` after its start."""


class SessionFailed(AgentEvent, name="connect.failed"):
    """The connection ends with an error; `reason` is its text."""


class SessionEnding(AgentEvent, name="connect.ending"):
    """The connection ends because it was closed, or its owner ended."""


class SessionEnded(AgentEvent, name="connect.ended"):
    """The connection has ended; `reason` says what could not be deleted."""


# ---- the agent and its sinks


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentLost(Event, name="agent.lost"):
    """The agent's process ended before its connection.

    Attributes:
      pid: Process id of the agent.
      pod: The proxy's pod, which cannot be reached without an agent; empty: there is none.
    """

    source: str = "connect"
    pid: int | None = None
    pod: str = ""


class MetricsUnavailable(AgentEvent, name="metrics.unavailable"):
    """The agent cannot serve or send the requested metrics."""


# ---- the service


class ServiceEvent(AgentEvent):
    """An event of the service, which may precede the proxy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceWaiting(ServiceEvent, name="service.waiting"):
    """The service is not ready; `reason` says why.

    Attributes:
      ready: Number of ready slices.
      wanted: Number of slices that must be ready.
      pods: Problems of pods, one text per pod.
    """

    ready: int | None = None
    wanted: int | None = None
    pods: tuple[str, ...] = ()


class ServiceWarning(ServiceEvent, name="service.warning"):
    """The service warns of a possible problem, which `reason` describes."""


# ---- the proxy


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyEvent(Event):
    """An event of the proxy itself."""

    source: str = "proxy"


class ProxyLost(Event):
    """The proxy has ended, or is unreachable."""


class ProxyWaiting(ProxyEvent, name="proxy.waiting"):
    """The proxy does not run yet, for the given `reason`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyServing(ProxyEvent, name="proxy.serving"):
    """The proxy's server runs; this says nothing about its slices.

    Attributes:
      pod: Its pod; None: it has none.
    """

    pod: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyExited(ProxyEvent, ProxyLost, name="proxy.exited"):
    """The proxy ended by itself, or was ended by the cluster.

    Attributes:
      exit_code: Negative: the signal that killed it. None: unknown.
      outcome: Why a pod ended, e.g. ``evicted`` (docs/reference/words.md); None: unknown.
      log_tail: The last lines of its log.
      report: Its exit report, e.g. a refusal by the resource manager.
    """

    exit_code: int | None = None
    outcome: str | None = None
    log_tail: tuple[str, ...] = ()
    report: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class ProxyDeleted(ProxyEvent, ProxyLost, name="proxy.deleted"):
    """The proxy was deleted, but not by the agent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunnelBroken(AgentEvent, ProxyLost, name="tunnel.broken"):
    """An open connection to the proxy broke.

    Attributes:
      error: The cause in the form of `SharedPathwaysError.to_json`; empty: another cause.
      final: Whether the agent will open no other tunnel.
      was_resumable: True if it was a link that is resumed, as a rule; this time it cannot be.
    """

    error: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    final: bool = False
    was_resumable: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HomeLost(AgentEvent, ProxyLost, name="home.lost"):
    """The proxy and its service can no longer be watched; a home's last event.

    Attributes:
      error: The cause in the form of `SharedPathwaysError.to_json`; empty: another cause.
    """

    error: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# ---- the link to the proxy, where it is resumable


class LinkLost(AgentEvent, name="link.lost"):
    """The last connection of the link to the proxy broke, for the given `reason`; work waits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkDialFailed(AgentEvent, name="link.dial_failed"):
    """The agent could not resume the lost link, for the given `reason`, and will try again.

    Attributes:
      attempt: Number of the attempt since the loss, from 1.
    """

    attempt: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkResumed(AgentEvent, name="link.resumed"):
    """The link works again, `duration_s` after its loss; nothing was lost.

    Attributes:
      attempts: Number of attempts, with the one that succeeded.
    """

    attempts: int = 0
