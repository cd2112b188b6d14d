"""The public handle of a testbed: starts one, or attaches to a running one."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed.access_changes import wait_for_end_of_token
from shared_pathways_service.testing.testbed.api import WAIT_S, Api
from shared_pathways_service.testing.testbed.audit import AUDIT_LOG, AuditEntry, read_audit_log
from shared_pathways_service.testing.testbed.control import call
from shared_pathways_service.testing.testbed.description import Description
from shared_pathways_service.testing.testbed.errors import TestbedError
from shared_pathways_service.testing.testbed.kubeconfig import write_kubeconfig
from shared_pathways_service.testing.testbed.launching import launch
from shared_pathways_service.testing.testbed.users import ADMIN_GROUP, User, new_user

__all__ = ["Testbed"]

#: Seconds for stopping everything.
_STOP_S = 60.0


class Testbed:
    """A running testbed: a real Kubernetes control plane, and nodes whose pods are processes.

    All methods block: in a coroutine, call long ones by `asyncio.to_thread`.

    Attributes:
      directory: Data, logs (`*.log`) and kubeconfigs.
      api: The API server as the administrator sees it.
    """

    __test__ = False

    def __init__(self, directory: Path, description: Description) -> None:
        self.directory = directory
        self._description = description
        self.api = Api(description.server, description.authority, description.admin_token)

    @classmethod
    @contextlib.contextmanager
    def start(
        cls,
        *,
        cache_dir: Path | None = None,
        report: Callable[[str], None] = lambda _line: None,
    ) -> Iterator[Testbed]:
        """Starts a testbed that ends with the block, and with this process.

        Args:
          cache_dir: Where the control plane is built; by default that of the settings.
          report: Called with lines about the progress of the build.

        Raises:
          TestbedUnavailable: The control plane is not built, and cannot be built.
          TestbedError: The testbed does not start.
        """
        directory = Path(tempfile.mkdtemp(prefix="sps-testbed-"))
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            pid = launch(
                directory,
                cache_dir=cache_dir or Settings.load().cache_dir,
                parent_pid=os.getpid(),
                report=report,
            )
            testbed = cls.attach(directory)
            stack.callback(os.waitpid, pid, 0)
            stack.callback(testbed.stop)
            yield testbed

    @classmethod
    def attach(cls, directory: Path) -> Testbed:
        """Returns the testbed that runs in a directory.

        Raises:
          TestbedError: There is none.
        """
        description = Description.read(directory)
        if description is None or not description.process.is_alive():
            raise TestbedError(f"no testbed runs in {directory}")
        return cls(directory, description)

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._description.server

    @property
    def authority(self) -> Path:
        """The file with the certificate of the API server's authority."""
        return self._description.authority

    @property
    def admin(self) -> User:
        """The administrator, of the group ``system:masters``."""
        return User(name="admin", token=self._description.admin_token, groups=(ADMIN_GROUP,))

    def stop(self) -> None:
        """Stops the testbed, even if another process started it, and waits for its end.

        Raises:
          TestbedError: It does not end.
        """
        if self._description.process.is_alive():
            self.command("stop")
            if not self.wait_for_end(_STOP_S):
                raise TestbedError(f"the testbed does not end within {_STOP_S:.0f} s")

    def wait_for_end(self, timeout_s: float | None = None) -> bool:
        """Waits until everything has ended; returns False on timeout."""
        try:
            pidfd = os.pidfd_open(self._description.process.pid)
        except ProcessLookupError:
            return True
        with os.fdopen(pidfd):
            if not self._description.process.is_alive():
                return True
            return bool(select.select([pidfd], [], [], timeout_s)[0])

    def add_user(self, name: str, *, lifetime_s: float | None = None) -> User:
        """Creates a user without permissions, whose requests are audited.

        Args:
          name: The name for RBAC.
          lifetime_s: Seconds until the token expires; by default it does not. The same name may be
            added again, for another token.
        """
        user = new_user(name)
        new = {"name": name, "token": user.token, "groups": user.groups, "lifetime_s": lifetime_s}
        self.command("add_user", **new)
        return user

    def end_token(self, user: User) -> None:
        """Revokes a user's token; returns once the API server refuses it, up to 10 s later."""
        self.command("end_token", token=user.token)
        wait_for_end_of_token(self.api_of(user))

    def api_of(self, user: User) -> Api:
        """Returns the API server as a user sees it."""
        return Api(self.server, self.authority, user.token)

    def kubeconfig_of(self, user: User, *, namespace: str = "default") -> Path:
        """Writes a user's kubeconfig (context ``testbed``) into the testbed's directory."""
        path = self.directory / f"{user.name}-in-{namespace}.kubeconfig"
        return write_kubeconfig(path, self.server, self.authority, user, namespace=namespace)

    def add_pools(
        self,
        pools: Mapping[str, int],
        *,
        cpu_nodes: int = 1,
        prefix: str = "",
        namespace: str = "",
    ) -> list[str]:
        """Creates nodes.

        Args:
          pools: TPU slices by instance type, e.g. ``{"tpuv6e:2x2": 3}``; a node pool each.
          cpu_nodes: Nodes without TPUs, for heads and proxies.
          prefix: The prefix of their names, which must be new.
          namespace: The only namespace whose pods run there; empty: any.

        Returns:
          The names of the nodes, those without TPUs last.
        """
        nodes: list[str] = self.command(
            "add_pools", prefix=prefix, pools=dict(pools), cpu_nodes=cpu_nodes, namespace=namespace
        )
        return nodes

    def drain(self, node: str, *, timeout_s: float = WAIT_S) -> None:
        """Cordons a node and evicts its pods, as `kubectl drain` does; waits for their end."""
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        on_node = {"fieldSelector": f"spec.nodeName={node}"}
        for pod in self.api.items("/api/v1/pods", **on_node):
            metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
            self.api.create(path, body)
        self.api.wait_until(
            "/api/v1/pods",
            lambda left: not left,
            what=f"end of the pods on {node}",
            timeout_s=timeout_s,
            **on_node,
        )

    def uncordon(self, node: str) -> None:
        """Marks a node as schedulable again."""
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": False}})

    def vanish(self, node: str) -> None:
        """Makes a node disappear, and count as unreachable at once."""
        self.command("vanish", node=node)

    def bring_back(self, node: str) -> None:
        """Restores a node that vanished."""
        self.command("bring_back", node=node)

    def reboot(self, node: str) -> None:
        """Kills all that runs on a node, and starts it again in the same pods."""
        self.command("reboot", node=node)

    def requests_of(self, user: User) -> list[AuditEntry]:
        """Returns the requests of a user so far, in order, from the API server's audit log."""
        return read_audit_log(self.directory / AUDIT_LOG, user.name)

    def kill_api_server(self) -> None:
        """Kills the API server; `start_api_server` restarts it on the same port."""
        self.command("kill_api_server")

    def start_api_server(self) -> None:
        """Starts the API server again, and waits until it is ready."""
        self.command("start_api_server")

    def command(self, command: str, /, **arguments: Any) -> Any:
        """Sends a command to the testbed's process, and returns its answer."""
        return call(self._description.control, command, **arguments)
