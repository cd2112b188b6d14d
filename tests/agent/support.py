"""Sessions over a home that is a script, with agents that are processes."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.deadlines import deadline, wait_until
from harness.session_requests import session_request
from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.events import Event
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.session.messages import Phase, Snapshot
from shared_pathways_service.testing.fake_home import FakeHome
from tests.agent.fake_agent import COMMAND

DEADLINE_S = deadline(60.0)
TYPE = "tpuv6e:2x2"


def eventually(look: Callable[[], Any], what: str) -> Any:
    """Waits until something is true, and returns it."""
    return wait_until(what, look)


class Bench:
    """A fake service in a directory, and the sessions that a test begins on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home_directory = root / "home"
        self.home_directory.mkdir(parents=True, exist_ok=True)
        self.home = FakeHome(str(self.home_directory))
        self.journal_directory = root / "journal"
        self.journal = Journal(self.journal_directory)
        self.log = root / "agents" / "agent.log"

    def start(
        self,
        *,
        slices: Sequence[str] = (TYPE,),
        delete_timeout_s: float = 30.0,
        queue_timeout_s: float | None = None,
        **script: Any,
    ) -> Start:
        name = f"isc-proxy-{uuid.uuid4().hex[:5]}"
        return Start(
            home=HomeChoice(name="fake", options={"directory": str(self.home_directory), **script}),
            request=session_request(
                name, *slices, timeout=DEADLINE_S, queue_timeout=queue_timeout_s
            ),
            session=str(uuid.uuid4()),
            owner=identity_of(),
            journal=str(self.journal_directory),
            delete_timeout_s=delete_timeout_s,
        )

    @contextlib.contextmanager
    def session(self, start: Start) -> Iterator[tuple[AgentSession, Heard]]:
        heard = Heard()
        session = AgentSession(start, log=self.log, on_event=heard, command=COMMAND)
        try:
            yield session, heard
        finally:
            session.close("the test is over")

    def nothing_left(self) -> bool:
        files = list(self.journal_directory.iterdir())
        return not self.home.proxies and not files


class Heard:
    """A sink that keeps events and can wait for one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def wait_for(self, kind: str) -> Event:
        with self._changed:
            found = self._changed.wait_for(lambda: kind in self.kinds, DEADLINE_S)
        assert found, f"waited for {kind}, heard {self.kinds}"
        return next(event for event in self.events if event.kind == kind)


def serve(session: AgentSession) -> Snapshot:
    return session.wait(lambda snapshot: snapshot.phase is Phase.SERVE, DEADLINE_S, lambda: None)
