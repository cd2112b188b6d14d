"""The process that a testbed lives in: it starts everything, and everything ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shared_pathways_service.processes import identity_of
from shared_pathways_service.servers.options import flag
from shared_pathways_service.testing.testbed.authentication import CACHE_S, Authentication
from shared_pathways_service.testing.testbed.build import Programs
from shared_pathways_service.testing.testbed.certificates import make_certificates
from shared_pathways_service.testing.testbed.control import ControlServer
from shared_pathways_service.testing.testbed.control_plane import ControlPlane
from shared_pathways_service.testing.testbed.description import Description
from shared_pathways_service.testing.testbed.ports import pick_ports
from shared_pathways_service.testing.testbed.users import ADMIN_GROUP, User, new_user

__all__ = ["Supervisor", "TestbedOptions"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestbedOptions:
    """How a testbed's process runs."""

    __test__ = False

    directory: str = flag("", help="For data, logs and sockets; the caller removes it.")
    programs: str = flag("", help="Where the control plane was built.")
    parent_pid: int = flag(0, help="The process whose end ends this one; 0: none.")
    ready_fd: int | None = flag(None, parse=int, help="Descriptor that is told the outcome.")


class Supervisor:
    """Runs a testbed until `stop`."""

    def __init__(self, options: TestbedOptions) -> None:
        self._directory = Path(options.directory)
        self._stopping = asyncio.Event()
        certificates = make_certificates(self._directory)
        api_port, authentication_port = pick_ports(2)
        self._authentication = Authentication(certificates, authentication_port)
        self._admin = new_user("admin", ADMIN_GROUP)
        self._control_plane = ControlPlane(
            Programs(Path(options.programs)),
            self._directory,
            certificates,
            [self._admin],
            port=api_port,
            webhook=self._authentication.write_config(self._directory / "authentication.json"),
            webhook_cache_s=CACHE_S,
            report=_log.warning,
        )
        self._description = Description(
            server=self._control_plane.server,
            authority=certificates.authority,
            admin_token=self._admin.token,
            control=self._directory / "control.sock",
            process=identity_of(),
        )
        self._control = ControlServer(self._description.control, self._commands())

    def stop(self, why: str) -> None:
        """Ends everything, soon."""
        _log.info("ends: %s", why)
        self._stopping.set()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Starts everything, says so, and ends everything when it is told to.

        Raises:
          TestbedError: Something did not start.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._enter(stack, self._authentication.start, self._authentication.stop)
            await self._enter(stack, self._control_plane.start, self._control_plane.stop)
            await self._enter(stack, self._control.start, self._control.stop)
            self._description.write(self._directory)
            on_ready()
            await self._stopping.wait()

    @staticmethod
    async def _enter(
        stack: contextlib.AsyncExitStack,
        start: Callable[[], Awaitable[None]],
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        # What is half started is stopped too.
        stack.push_async_callback(stop)
        await start()

    def _commands(self) -> dict[str, Callable[..., Any]]:
        return {
            "add_user": self._add_user,
            "end_token": self._authentication.end,
            "kill_api_server": self._control_plane.kill_api_server,
            "start_api_server": self._control_plane.start_api_server,
            "stop": lambda: self.stop("it was told to"),
        }

    def _add_user(self, name: str, token: str, groups: list[str], lifetime_s: float | None) -> None:
        user = User(name=name, token=token, groups=tuple(groups))
        self._authentication.add(user, lifetime_s)
