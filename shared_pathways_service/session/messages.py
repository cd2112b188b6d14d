"""Inputs (events) and outputs (effects) of a session's state machine: data only.

The runner performs the effects in the given order, and returns the outcome of each as an event.
`StopStep` means: end the running step, and wait until it has ended; its answer is dropped.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.session.link_view import LinkView

__all__ = [
    "BEFORE_JAX",
    "ENDING",
    "RISING",
    "Announce",
    "Cancelled",
    "CreateProxy",
    "DeleteProxy",
    "Deleted",
    "Effect",
    "ExamineService",
    "Finish",
    "FollowProxy",
    "OpenTunnel",
    "Phase",
    "Preflight",
    "PreflightDone",
    "Probe",
    "Probed",
    "ProxyCreated",
    "ServiceExamined",
    "SessionEvent",
    "SliceView",
    "Snapshot",
    "StepFailed",
    "StopStep",
    "Tick",
    "TunnelOpen",
]


class Phase(enum.StrEnum):
    """The phases of a session, in order, except that any may change to `UNDO` or `DELETE`."""

    NEW = "new"
    PREFLIGHT = "preflight"
    CREATE = "create"
    START = "start"
    TUNNEL = "tunnel"
    PROBE = "probe"
    PLACE = "place"
    SERVE = "serve"
    UNDO = "undo"
    DELETE = "delete"
    CLOSED = "closed"
    FAILED = "failed"


#: Phases before `SERVE`.
RISING = (Phase.PREFLIGHT, Phase.CREATE, Phase.START, Phase.TUNNEL, Phase.PROBE, Phase.PLACE)
#: Phases in which JAX is not attached to the proxy yet.
BEFORE_JAX = (Phase.START, Phase.TUNNEL, Phase.PROBE)
#: Phases after the decision to end.
ENDING = (Phase.UNDO, Phase.DELETE, Phase.CLOSED, Phase.FAILED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceView:
    """A virtual slice as the session knows it; `starting`: its executors do not serve yet."""

    index: int
    instance_type: str
    state: str
    slice_id: str = ""
    generation: int = 0
    starting: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a session at one moment.

    Attributes:
      address: The proxy's address on this machine; empty before it has one.
      ready: Whether the proxy answered the probe.
      placed: Whether the gang was placed; later losses do not change it.
      preempted: Whether its slices were taken for another tenant, and are not replaced yet.
      position: Position in the queue, from 1; None if not queued.
      timings: Seconds by step.
      error: Its error, in the form of `SharedPathwaysError.to_json`.
      left: Things that could not be deleted, in words; empty: none.
      link: The resumable link to the proxy; None: it is not resumable, or was not lost yet.
    """

    name: str
    phase: Phase
    service: str = ""
    namespace: str = ""
    uid: str = ""
    pod: str = ""
    log: str = ""
    address: str = ""
    ready: bool = False
    placed: bool = False
    preempted: bool = False
    slices: tuple[SliceView, ...] = ()
    position: int | None = None
    holders: tuple[str, ...] = ()
    timings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    left: str = ""
    link: LinkView | None = None

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self.phase in (Phase.CLOSED, Phase.FAILED)

    @property
    def state(self) -> str:
        """The phase, or ``preempted`` while another tenant has its slices."""
        return "preempted" if self.preempted else self.phase.value

    @property
    def waits_for_link(self) -> bool:
        """Whether the session goes on, but its link is lost."""
        return self.link is not None and self.link.is_lost and self.phase not in ENDING

    def is_placed_now(self, gang: int) -> bool:
        """Returns whether the gang is placed, with replacements for slices taken or lost since."""
        if self.preempted or not self.placed:
            return False
        # (If the service does not name slices, as in some logs, no loss is known.)
        is_short = any(view.state == "unplaced" and view.generation for view in self.slices)
        return not is_short or sum(view.state == "placed" for view in self.slices) >= gang

    def to_json(self) -> dict[str, Any]:
        """Returns the snapshot as plain data, from which `from_json` makes an equal one."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Snapshot:
        """Makes the snapshot from plain data of `to_json`."""
        slices = tuple(SliceView(**view) for view in data["slices"])
        link = data.get("link")
        more = {
            "phase": Phase(data["phase"]),
            "slices": slices,
            "holders": tuple(data["holders"]),
            "link": None if link is None else LinkView.from_json(link),
        }
        return cls(**{**data, **more})


# ---- events


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreflightDone:
    """The service exists and accepts the request."""

    service: str
    instance_types: tuple[str, ...]
    namespace: str = ""
    more_slices: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyCreated:
    """The proxy exists."""

    uid: str
    pod: str = ""
    log: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunnelOpen:
    """The proxy can be reached at this address."""

    address: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probed:
    """The proxy answers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceExamined:
    """The service fails with this error; None: it does not, or this is not known."""

    failure: SharedPathwaysError | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deleted:
    """The proxy is deleted, or did not exist; with last lines of its log, if available."""

    log_tail: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFailed:
    """The running step (also the deletion) ended with an error."""

    error: SharedPathwaysError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cancelled:
    """The session must end: the client closed it or was interrupted, or its owner ended.

    Attributes:
      error: The error for the client if it did not request the end itself.
      delete_timeout_s: Seconds for the deletion, longer if the client does not wait for it; None:
        the session's.
    """

    reason: str
    error: SharedPathwaysError | None = None
    delete_timeout_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tick:
    """Time has passed; due at the machine's `next_deadline`."""


SessionEvent = (
    PreflightDone
    | ProxyCreated
    | TunnelOpen
    | Probed
    | ServiceExamined
    | Deleted
    | StepFailed
    | Event
    | Cancelled
    | Tick
)

# ---- effects


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preflight:
    """Find the service and check the request; answered by `PreflightDone`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CreateProxy:
    """Write the journal, then create the proxy; answered by `ProxyCreated`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowProxy:
    """Report events of the proxy until `Finish`; not a step, but concurrent to the steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenTunnel:
    """Make the proxy reachable from this machine; answered by `TunnelOpen`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """Probe the proxy at this address until it answers; answered by `Probed`."""

    address: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamineService:
    """Find out whether the service fails; answered by `ServiceExamined`.

    Not a step, but concurrent to the steps. It may take as long as `timeouts.SERVICE_FAILURE`.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopStep:
    """End the running step and wait until it has ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeleteProxy:
    """Delete this session's objects, with retries until it succeeds; answered by `Deleted`.

    Attributes:
      uid: The proxy's uid; empty if it is unknown whether there is a proxy.
      log_lines: Lines of its log to fetch first; 0: none.
    """

    uid: str
    log_lines: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Announce:
    """Send an event to the client and the other sinks."""

    event: Event


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finish:
    """The session has ended; `Snapshot.left` lists leftovers, if any."""


Effect = (
    Preflight
    | CreateProxy
    | FollowProxy
    | OpenTunnel
    | Probe
    | ExamineService
    | StopStep
    | DeleteProxy
    | Announce
    | Finish
)
