"""A connection with a real agent, a scripted home, and no JAX."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared_pathways_service import (
    isc_pathways,
    jax_client,
)
from shared_pathways_service.agent.journal import Entry, Journal
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.agent.request import start_of
from shared_pathways_service.connection import Connection
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.testing.fake_home import FakeHome

TYPE = "tpuv6e:2x2"


class JaxRuntimeError(RuntimeError):
    """By this name JAX's own is known."""


@dataclasses.dataclass(frozen=True)
class Device:
    slice_index: int


class Attachments:
    """In place of JAX: what was attached, and whether it was detached again."""

    def __init__(self) -> None:
        self.live = 0
        self.targets: list[jax_client.ProxyTarget] = []
        self.before: Callable[[], object] = lambda: None
        self.devices = (Device(0), Device(1), Device(0))

    def attach(self, target: jax_client.ProxyTarget, *, timeout: float) -> Attachments:
        assert timeout > 0
        self.before()
        self.targets.append(target)
        self.live += 1
        return self

    def cut(self) -> None:
        pass

    def detach(self) -> None:
        self.live -= 1


class Bench:
    """Makes connections over a fake service, and looks at what is left of them."""

    def __init__(self, root: Path, attachments: Attachments) -> None:
        self.directory = root / "home"
        self.directory.mkdir()
        self.state = Path(os.environ["SPS_STATE_DIR"])
        self.home = FakeHome(str(self.directory))
        self.script: dict[str, Any] = {}
        self.delete_timeout_s = 60.0
        self.jax = attachments

    def orders(self, *arguments: Any) -> Start:
        start = start_of(*arguments)
        options = {"directory": str(self.directory), **self.script}
        home = HomeChoice(name="fake", options=options)
        return dataclasses.replace(start, home=home, delete_timeout_s=self.delete_timeout_s)

    def connect(self, **keywords: Any) -> Connection:
        keywords.setdefault("expected_tpu_instances", {TYPE: 2})
        return isc_pathways.connect(**keywords)

    @property
    def session(self) -> str:
        [session] = self.home.proxies
        return session

    def end_proxy(self, reason: str = "killed after the grace") -> None:
        self.home.tell(self.session, "proxy.exited", reason, exit_code=75, log_tail="last words")

    def journal_entries(self) -> list[Entry]:
        return Journal(self.state / "journal").entries()

    def is_clean(self) -> bool:
        return not self.home.proxies and not list((self.state / "journal").iterdir())


def failed(connection: Connection) -> bool:
    return connection.status().error is not None
