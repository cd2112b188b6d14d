"""A session driven by hand, to each of its phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.session_requests import session_request
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import (
    SharedPathwaysError,
    from_json,
)
from shared_pathways_service.events import Event
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.state_machine import (
    Session,
)

TYPE = "tpuv6e:2x2"
DELETE_TIMEOUT_S = 60.0


def asking(**keywords: Any) -> SessionRequest:
    """Returns a request of two slices; the keywords are connect()'s."""
    return session_request("isc-proxy-ada", TYPE, TYPE, timeout=100.0, **keywords)


REQUEST = asking()


class Driver:
    """A machine, its clock, and what it wanted done (announcements aside)."""

    def __init__(self, request: SessionRequest = REQUEST) -> None:
        self.now = 1000.0
        self.machine = Session(request, self.now, DELETE_TIMEOUT_S)
        self.effects: list[m.Effect] = []
        self.said: list[Event] = []
        self._keep(self.machine.start(self.now))

    def _keep(self, effects: Sequence[m.Effect]) -> list[m.Effect]:
        self.said += [effect.event for effect in effects if isinstance(effect, m.Announce)]
        done: list[m.Effect] = [e for e in effects if not isinstance(e, m.Announce)]
        self.effects += done
        return done

    def put(self, *events: m.SessionEvent, after: float = 0.0) -> list[m.Effect]:
        self.now += after
        return [e for event in events for e in self._keep(self.machine.handle(event, self.now))]

    def news(self, kind: str, reason: str = "", /, **data: str | float | None) -> list[m.Effect]:
        return self.put(Event.of(kind, reason=reason, data=data))

    def expire(self) -> list[m.Effect]:
        """Lets the time pass until the machine's next deadline."""
        deadline = self.machine.next_deadline
        assert deadline is not None
        return self.put(m.Tick(), after=deadline - self.now)

    def at(self, phase: m.Phase) -> bool:
        return self.machine.phase is phase

    @property
    def snapshot(self) -> m.Snapshot:
        return self.machine.snapshot

    @property
    def error(self) -> SharedPathwaysError:
        assert self.snapshot.error is not None
        return from_json(self.snapshot.error)


PREFLIGHT = m.PreflightDone(service="unix:/rm", instance_types=(TYPE,))
CREATED = m.ProxyCreated(uid="uid-1")
TUNNEL = m.TunnelOpen(address="unix:/proxy")


def to_create() -> Driver:
    driver = Driver()
    driver.put(PREFLIGHT)
    return driver


def to_start(request: SessionRequest = REQUEST) -> Driver:
    driver = Driver(request)
    driver.put(PREFLIGHT, CREATED)
    return driver


def to_tunnel() -> Driver:
    driver = to_start()
    driver.news("proxy.serving")
    return driver


def to_probe() -> Driver:
    driver = to_tunnel()
    driver.put(TUNNEL)
    return driver


def to_place(request: SessionRequest = REQUEST) -> Driver:
    driver = to_start(request)
    driver.news("proxy.serving")
    driver.put(TUNNEL, m.Probed())
    return driver


def to_serve() -> Driver:
    driver = to_place()
    for index in range(2):
        place(driver, index)
    driver.news("tenant.running", placed=2, wanted=2)
    return driver


def place(driver: Driver, index: int, generation: int = 1) -> None:
    driver.news(
        "slice.placed",
        virtual_index=index,
        slice_id=f"slice-{index}",
        generation=generation,
        instance_type=TYPE,
    )


RISING: dict[str, Callable[[], Driver]] = {
    "preflight": Driver,
    "create": to_create,
    "start": to_start,
    "tunnel": to_tunnel,
    "probe": to_probe,
    "place": to_place,
    "serve": to_serve,
}


def ends_clean(driver: Driver, phase: m.Phase = m.Phase.CLOSED) -> None:
    """Lets the deletion succeed, and looks at how the session ended."""
    if driver.at(m.Phase.UNDO):
        driver.put(m.ProxyCreated(uid="uid-1"))
    if driver.at(m.Phase.DELETE):
        driver.put(m.Deleted())
    assert driver.at(phase)
    assert driver.effects[-1] == m.Finish()
    assert driver.snapshot.left == ""
    assert driver.machine.next_deadline is None
    began = sum(isinstance(effect, m.CreateProxy) for effect in driver.effects)
    assert sum(isinstance(effect, m.DeleteProxy) for effect in driver.effects) == began


def queued(timeout: float | None) -> Driver:
    driver = to_place(asking(queue_timeout=timeout))
    driver.news("tenant.queued", "0 free", position=2, holders="ada@a: 1 x t\nbob@b: 1 x t")
    return driver
