"""The instructions that come out of the resource manager's core: data only.

An event causes several. So they are not frozen, and the most frequent ones are created by position:
frozen classes or keyword arguments would double the cost of creating one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events import Event
from shared_pathways_service.scheduling.book.persisted import Persist

__all__ = [
    "Announce",
    "AssignWorker",
    "EndTenantStream",
    "Instruction",
    "RefusalKind",
    "RefuseTenant",
    "RefuseWorker",
    "NotifyExecutors",
    "NotifyIdle",
    "NotifyPlaced",
    "NotifyPreempting",
    "NotifyQueued",
    "NotifyRunning",
    "NotifyUnplaced",
    "WelcomeTenant",
    "WelcomeWorker",
]


class RefusalKind(enum.StrEnum):
    """Why a tenant is refused."""

    SLICES_TAKEN = "slices_taken"
    UNKNOWN_TYPE = "unknown_type"
    TOO_MANY = "too_many"
    LOST = "lost"
    RELEASED = "released"
    LIMIT = "limit"


@dataclasses.dataclass(slots=True)
class WelcomeWorker:
    """The worker is admitted.

    Attributes:
      last_generation: The highest generation given so far.
    """

    slice_id: str
    host_index: int
    incarnation: str
    last_generation: int


@dataclasses.dataclass(kw_only=True, slots=True)
class RefuseWorker:
    """End this worker's stream with an error; the worker then exits non-zero.

    Also sent to an admitted worker that hangs, or whose place another process has taken.
    """

    slice_id: str
    host_index: int
    incarnation: str
    reason: str


@dataclasses.dataclass(kw_only=True, slots=True)
class AssignWorker:
    """Tell a worker for which placement it is to run an executor, instead of any other.

    Attributes:
      tenant: The holder of its slice; empty: none.
      generation: That of the placement; 0: it is to run no executor.
    """

    slice_id: str
    host_index: int
    incarnation: str
    instance_type: InstanceType
    tenant: str
    generation: int


@dataclasses.dataclass(slots=True)
class WelcomeTenant:
    """The tenant is known from here on."""

    tenant: str
    incarnation: str
    recovering: bool


@dataclasses.dataclass(slots=True)
class NotifyQueued:
    """The tenant waits; sent again whenever position or reason change."""

    tenant: str
    position: int
    reason: str
    holders: tuple[str, ...]


@dataclasses.dataclass(slots=True)
class NotifyPlaced:
    """A virtual slice was placed on a physical one."""

    tenant: str
    virtual_index: int
    instance_type: InstanceType
    slice_id: str
    generation: int


@dataclasses.dataclass(slots=True)
class NotifyUnplaced:
    """A virtual slice has lost its physical one."""

    tenant: str
    virtual_index: int
    instance_type: InstanceType
    slice_id: str
    generation: int
    reason: str


@dataclasses.dataclass(kw_only=True, slots=True)
class NotifyExecutors:
    """Executors serve on all hosts of a placement; the server knows their addresses.

    Sent again to a proxy that came back.
    """

    tenant: str
    virtual_index: int
    slice_id: str
    generation: int


@dataclasses.dataclass(kw_only=True, slots=True)
class NotifyPreempting:
    """Slices of the tenant will be taken: all of them, or some that are placed anew at once.

    Attributes:
      grace_s: Seconds from now.
      by: The preemptor, for people.
      indices: The virtual slices concerned; empty: all.
      withdrawn: Whether this withdraws an earlier notice.
    """

    tenant: str
    grace_s: float
    by: str
    indices: tuple[int, ...] = ()
    withdrawn: bool = False


@dataclasses.dataclass(kw_only=True, slots=True)
class NotifyIdle:
    """The tenant does not work, and its slices will be taken back, or were.

    Attributes:
      idle_s: Seconds that it has been idle.
      release_s: Seconds from now; 0 if there is nothing to come.
      withdrawn: Whether this withdraws an earlier warning.
      released: They were taken back; it gets others when it works again.
      count: Its count of activity in its last report.
    """

    tenant: str
    idle_s: float
    release_s: float = 0.0
    withdrawn: bool = False
    released: bool = False
    count: int = 0


@dataclasses.dataclass(slots=True)
class NotifyRunning:
    """The tenant's gang is placed. Sent once, and again to a proxy that came back.

    A proxy that came back while too many slices were lost is notified once the gang is whole again.
    """

    tenant: str
    placed: int
    wanted: int


@dataclasses.dataclass(kw_only=True, slots=True)
class RefuseTenant:
    """Send the tenant the reason, then end its stream.

    Attributes:
      incarnation: The incarnation of the proxy to notify.
      spares: Withheld spares with which the request would have been granted, by instance type;
        empty if spares would not suffice.
      waiting_is_futile: Whether the ends of all others would not help; the message says what would.
        None: not known.
    """

    tenant: str
    incarnation: str
    kind: RefusalKind
    message: str
    wanted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    free: Mapping[str, int] = dataclasses.field(default_factory=dict)
    holders: tuple[str, ...] = ()
    position: int | None = None
    types: tuple[str, ...] = ()
    spares: Mapping[str, int] = dataclasses.field(default_factory=dict)
    waiting_is_futile: bool | None = None


@dataclasses.dataclass(kw_only=True, slots=True)
class EndTenantStream:
    """End this stream with ALREADY_EXISTS: another live proxy has the name."""

    tenant: str
    incarnation: str
    reason: str


@dataclasses.dataclass(slots=True)
class Announce:
    """An event for watchers and logs.

    Attributes:
      make: A factory of the event; the server calls it, as an event carries a clock's time.
    """

    make: Callable[[], Event]


Instruction = (
    Persist
    | WelcomeWorker
    | RefuseWorker
    | AssignWorker
    | WelcomeTenant
    | NotifyQueued
    | NotifyPlaced
    | NotifyUnplaced
    | NotifyRunning
    | NotifyExecutors
    | NotifyPreempting
    | NotifyIdle
    | RefuseTenant
    | EndTenantStream
    | Announce
)
