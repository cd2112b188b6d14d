"""What goes into a session's machine, and what comes out: data only.

Whoever runs the machine carries out the effects in the order given, and hands back what came of
each as an event. `StopStep` means: end the step that runs, and wait until it has ended; no answer
of it is handed in afterwards.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event

__all__ = [
    "Announce",
    "Cancelled",
    "CreateProxy",
    "DeleteProxy",
    "Deleted",
    "Effect",
    "Finish",
    "FollowProxy",
    "OpenTunnel",
    "Phase",
    "Preflight",
    "PreflightDone",
    "Probe",
    "Probed",
    "ProxyCreated",
    "SessionEvent",
    "SliceView",
    "Snapshot",
    "StepFailed",
    "StopStep",
    "Tick",
    "TunnelOpen",
]


class Phase(enum.StrEnum):
    """Where a session is; in this order, but that any of them may turn to `UNDO` or `DELETE`."""

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceView:
    """A virtual slice as the session knows it; `state` is a virtual slice's."""

    index: int
    instance_type: str
    state: str
    slice_id: str = ""
    generation: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that is known of a session at one moment.

    Attributes:
      address: Where the proxy answers on this machine; empty before that.
      ready: Whether the proxy answered the probe.
      placed: Whether the gang was placed; what was lost since then does not change it.
      preempted: Whether its slices were taken for somebody else, and are not back yet.
      position: In the queue, from 1; None when not queued.
      timings: Seconds by step.
      error: Why it failed, as `SharedPathwaysError.to_json` gives it.
      left: What could not be deleted, in words; empty: nothing.
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

    @property
    def ended(self) -> bool:
        """Whether nothing will happen any more."""
        return self.phase in (Phase.CLOSED, Phase.FAILED)

    @property
    def state(self) -> str:
        """The phase, or ``preempted`` while somebody else has its slices."""
        return "preempted" if self.preempted else self.phase.value

    def is_placed_now(self, gang: int) -> bool:
        """Whether the gang was placed, and what was taken or lost since then is back.

        Args:
          gang: How many slices it is.
        """
        if self.preempted or not self.placed:
            return False
        # (Where the service names no slices, as some logs do not, none is known to be lost.)
        is_short = any(view.state == "unplaced" and view.generation for view in self.slices)
        return not is_short or sum(view.state == "placed" for view in self.slices) >= gang

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data; `from_json` makes an equal one."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Snapshot:
        """Makes the snapshot that `to_json` described."""
        slices = tuple(SliceView(**view) for view in data["slices"])
        more = {"phase": Phase(data["phase"]), "slices": slices, "holders": tuple(data["holders"])}
        return cls(**{**data, **more})


# ---- events


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreflightDone:
    """The service is there and takes the request."""

    service: str
    instance_types: tuple[str, ...]
    namespace: str = ""


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
class Deleted:
    """The proxy is gone, or never was.

    Attributes:
      log_tail: Last lines of its log, if they were asked for and could be had.
    """

    log_tail: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFailed:
    """The step that runs (the deletion too) ended with an error."""

    error: SharedPathwaysError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cancelled:
    """The session is to end: the client closed it or was interrupted, or its owner is gone.

    Attributes:
      error: What the client is told when it did not ask for the end itself.
      delete_timeout_s: None: the session's; longer when nobody waits for it.
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
    """Hand in news of the proxy until `Finish`; not a step, it goes on beside them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenTunnel:
    """Make the proxy reachable from this machine; answered by `TunnelOpen`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """Ask the proxy at this address until it answers; answered by `Probed`."""

    address: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopStep:
    """End the step that runs and wait until it has ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeleteProxy:
    """Delete what bears this session, trying again until it is done; answered by `Deleted`.

    Attributes:
      uid: Of the proxy; empty when it is not known whether there is one.
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
    """The session has ended; nothing is left over unless `Snapshot.left` says so."""


Effect = (
    Preflight
    | CreateProxy
    | FollowProxy
    | OpenTunnel
    | Probe
    | StopStep
    | DeleteProxy
    | Announce
    | Finish
)
