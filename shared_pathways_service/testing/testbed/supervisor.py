"""The main process of a testbed: starts all others, which end with it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shared_pathways_service.api.instances import parse_instance_counts
from shared_pathways_service.flags.parsing import flag
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.kubeconfig import access_of_context, read_kubeconfig
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.testing.testbed.authentication import CACHE_S, Authentication
from shared_pathways_service.testing.testbed.build import Programs
from shared_pathways_service.testing.testbed.certificates import make_certificates
from shared_pathways_service.testing.testbed.control import ControlServer
from shared_pathways_service.testing.testbed.control_plane import ControlPlane
from shared_pathways_service.testing.testbed.description import Description
from shared_pathways_service.testing.testbed.extensions import Extensions
from shared_pathways_service.testing.testbed.node_agent.agent import NodeAgent
from shared_pathways_service.testing.testbed.node_agent.nodes import cpu_pool, tpu_pools
from shared_pathways_service.testing.testbed.ports import pick_ports
from shared_pathways_service.testing.testbed.users import ADMIN_GROUP, User, new_user

__all__ = ["Supervisor", "TestbedOptions"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestbedOptions:
    """Options of a testbed's process."""

    __test__ = False

    directory: str = flag("", help="For data, logs and sockets; the caller removes it.")
    programs: str = flag("", help="Where the control plane was built.")
    parent_pid: int = flag(0, help="End with the process of this pid; 0: none.")
    ready_fd: int | None = flag(None, parse=int, help="Report the outcome to this file descriptor.")


class Supervisor:
    """Runs a testbed until `stop`."""

    def __init__(self, options: TestbedOptions) -> None:
        self._directory = Path(options.directory)
        self._stopping = asyncio.Event()
        certificates = make_certificates(self._directory)
        api_port, authentication_port, *others = pick_ports(5)
        self._authentication = Authentication(certificates, authentication_port)
        self._admin = new_user("admin", ADMIN_GROUP)
        programs = Programs(Path(options.programs))
        self._control_plane = ControlPlane(
            programs,
            self._directory,
            certificates,
            [self._admin],
            port=api_port,
            webhook=self._authentication.write_config(self._directory / "authentication.json"),
            webhook_cache_s=CACHE_S,
            report=_log.warning,
        )
        self._extensions = Extensions(
            programs,
            self._directory,
            certificates,
            self._control_plane.kubeconfig,
            ports=others,
            report=_log.warning,
        )
        self._description = Description(
            server=self._control_plane.server,
            authority=certificates.authority,
            admin_token=self._admin.token,
            control=self._directory / "control.sock",
            process=identity_of(),
        )

    def stop(self, why: str) -> None:
        """Requests the end of everything."""
        _log.info("ends: %s", why)
        self._stopping.set()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Starts everything, calls `on_ready`, and stops everything after `stop`.

        Raises:
          TestbedError: A program did not start.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._enter(stack, self._authentication.start, self._authentication.stop)
            await self._enter(stack, self._control_plane.start, self._control_plane.stop)
            config = read_kubeconfig([self._control_plane.kubeconfig])
            api = await stack.enter_async_context(KubeApi(access_of_context(config)))
            await self._extensions.define(api)
            await self._control_plane.start_controllers()
            await self._enter(stack, lambda: self._extensions.start(api), self._extensions.stop)
            agent = NodeAgent(api, self._directory / "pods", self._extensions.kubelet_port)
            await self._enter(stack, agent.start, agent.stop)
            control = ControlServer(self._description.control, self._commands(agent))
            await self._enter(stack, control.start, control.stop)
            self._description.write(self._directory)
            on_ready()
            await self._stopping.wait()

    @staticmethod
    async def _enter(
        stack: contextlib.AsyncExitStack,
        start: Callable[[], Awaitable[None]],
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        # Also stop programs that are only partly started.
        stack.push_async_callback(stop)
        await start()

    def _commands(self, agent: NodeAgent) -> dict[str, Callable[..., Any]]:
        async def add_pools(
            prefix: str, pools: dict[str, int], cpu_nodes: int, namespace: str
        ) -> list[str]:
            counts = parse_instance_counts(pools, field="pools") if pools else {}
            wanted = tpu_pools(prefix, counts, namespace)
            return await agent.add_pools([*wanted, cpu_pool(prefix, cpu_nodes, namespace)])

        def add_user(name: str, token: str, groups: list[str], lifetime_s: float | None) -> None:
            user = User(name=name, token=token, groups=tuple(groups))
            self._authentication.add(user, lifetime_s)

        return {
            "add_pools": add_pools,
            "add_user": add_user,
            "bring_back": agent.bring_back,
            "reboot": agent.reboot,
            "end_token": self._authentication.end,
            "kill_api_server": self._control_plane.kill_api_server,
            "processes": agent.processes,
            "remove_nodes": agent.remove_nodes,
            "start_api_server": self._control_plane.start_api_server,
            "stop": lambda: self.stop("by command"),
            "vanish": agent.vanish,
        }
