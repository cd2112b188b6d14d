"""Runs the real control plane as local processes: etcd, API server, controller manager, scheduler.

JobSet's controller and KWOK (`extensions`) run on top of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.testing.testbed.audit import AUDIT_LOG
from shared_pathways_service.testing.testbed.build import Programs
from shared_pathways_service.testing.testbed.certificates import Certificates
from shared_pathways_service.testing.testbed.daemons import Daemon
from shared_pathways_service.testing.testbed.errors import TestbedError
from shared_pathways_service.testing.testbed.kubeconfig import write_kubeconfig
from shared_pathways_service.testing.testbed.users import ADMIN_GROUP, AUDITED_GROUP, User, new_user

__all__ = ["NODE_GRACE_S", "ControlPlane"]

#: Seconds without a heartbeat from a node after which it counts as unreachable.
NODE_GRACE_S = 40

#: The controllers for Jobs, JobSets, quotas, drains, lost nodes and volumes; others would only cost
#: time.
_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
)

#: In addition to the defaults. The first two are on in GKE: pods that request TPUs tolerate their
#: nodes' taint; the third gives each namespace nodes of its own.
_ADMISSION = ("ExtendedResourceToleration", "Priority", "PodNodeSelector")

_CONTROLLER_MANAGER = "system:kube-controller-manager"
_READY_S = 120.0
_POLL_S = 0.1


class ControlPlane:
    """Starts, stops, kills and restarts the control plane.

    Args:
      programs: The built programs.
      directory: For data, logs and configuration; a short path, because it contains sockets.
      certificates: The API server's certificates.
      users: Users by token; the first is the administrator.
      port: The API server's port.
      report: Called when a program ended by itself.
    """

    def __init__(
        self,
        programs: Programs,
        directory: Path,
        certificates: Certificates,
        users: Sequence[User],
        *,
        port: int,
        webhook: Path,
        webhook_cache_s: int,
        report: Callable[[str], None],
    ) -> None:
        self.server = f"https://{LOOPBACK}:{port}"
        self._directory = directory
        self._certificates = certificates
        self._admin = users[0]
        self._port = port
        self.kubeconfig = directory / "admin.kubeconfig"
        write_kubeconfig(self.kubeconfig, self.server, certificates.authority, self._admin)
        # Policies may distinguish controllers from other users.
        controllers = new_user(_CONTROLLER_MANAGER, ADMIN_GROUP)
        controllers_kubeconfig = directory / "controllers.kubeconfig"
        write_kubeconfig(controllers_kubeconfig, self.server, certificates.authority, controllers)
        tokens = directory / "tokens.csv"
        tokens.touch(mode=0o600)
        lines = [_token_line(user) for user in (*users, controllers)]
        tokens.write_text("".join(lines), encoding="utf-8")

        def daemon(name: str, *flags: str) -> Daemon:
            command = [str(programs.path(name)), *flags]
            return Daemon(command, log=directory / f"{name}.log", report=report)

        self._etcd = daemon("etcd", *_etcd_flags(directory))
        self._api_server = daemon(
            "kube-apiserver",
            *self._api_server_flags(tokens, self._policy()),
            f"--authentication-token-webhook-config-file={webhook}",
            f"--authentication-token-webhook-cache-ttl={webhook_cache_s}s",
            "--authentication-token-webhook-version=v1",
        )
        common = ("--leader-elect=false", "--secure-port=0")
        self._controllers = (
            daemon(
                "kube-controller-manager",
                f"--kubeconfig={controllers_kubeconfig}",
                *common,
                *_manager_flags(certificates),
            ),
            daemon("kube-scheduler", f"--kubeconfig={self.kubeconfig}", *common),
        )

    @property
    def daemons(self) -> tuple[Daemon, ...]:
        """All its programs."""
        return (self._etcd, self._api_server, *self._controllers)

    async def start(self) -> None:
        """Starts etcd and the API server, and waits until it is ready.

        Raises:
          TestbedError: A program ended, or the start took too long.
        """
        await self._etcd.start()
        await self.start_api_server()

    async def start_controllers(self) -> None:
        """Starts what acts on objects, once all resources are defined.

        (Of those that are defined later, the garbage collector learns half a minute later, and
        until then it deletes nothing of what a deleted JobSet owns.)
        """
        for controller in self._controllers:
            await controller.start()

    async def stop(self) -> None:
        """Stops all programs; the data remain."""
        # A clean end is not needed, because the programs never start again.
        await asyncio.gather(*(daemon.kill() for daemon in self.daemons))

    async def start_api_server(self) -> None:
        """Starts the API server, also after `kill_api_server`, and waits until it is ready."""
        await self._api_server.start()
        deadline = time.monotonic() + _READY_S
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while not await self._is_ready(session):
                for needed in (self._etcd, self._api_server):
                    needed.check()
                if time.monotonic() > deadline:
                    raise TestbedError(
                        f"the API server is not ready after {_READY_S:.0f} s",
                        hint=f"its log ends: {self._api_server.tail()}",
                    )
                await asyncio.sleep(_POLL_S)

    async def kill_api_server(self) -> None:
        """Kills the API server: all connections break, and new ones fail."""
        await self._api_server.kill()

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        headers = {"Authorization": f"Bearer {self._admin.token}"}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            # Clients check the certificate.
            async with session.get(f"{self.server}/readyz", headers=headers, ssl=False) as answer:
                return answer.status == 200
        return False

    def _policy(self) -> Path:
        """Writes the audit policy: log the requests of users, not those of the control plane."""
        path = self._directory / "audit-policy.json"
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "userGroups": [AUDITED_GROUP]}, {"level": "None"}],
        }
        path.write_text(json.dumps(policy), encoding="utf-8")
        return path

    def _api_server_flags(self, tokens: Path, policy: Path) -> list[str]:
        files = self._certificates
        return [
            f"--etcd-servers=unix://{self._directory}/etcd.sock",
            f"--secure-port={self._port}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            # Loopback is the only address, and is not valid in Endpoints.
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={files.certificate}",
            f"--tls-private-key-file={files.key}",
            f"--kubelet-certificate-authority={files.authority}",
            f"--service-account-key-file={files.account_public_key}",
            f"--service-account-signing-key-file={files.account_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/16",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            "--disable-admission-plugins=ServiceAccount",
            f"--enable-admission-plugins={','.join(_ADMISSION)}",
            f"--audit-log-path={self._directory / AUDIT_LOG}",
            "--audit-log-mode=blocking",
            f"--audit-policy-file={policy}",
        ]


def _etcd_flags(directory: Path) -> list[str]:
    client, peer = f"unix://{directory}/etcd.sock", f"unix://{directory}/etcd-peer.sock"
    return [
        "--name=testbed",
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        # It has no peers; the address must only be well-formed.
        "--initial-advertise-peer-urls=http://localhost:1",
        "--initial-cluster=testbed=http://localhost:1",
        # Its data need not survive the machine.
        "--unsafe-no-fsync",
        "--log-level=error",
    ]


def _manager_flags(certificates: Certificates) -> list[str]:
    return [
        f"--service-account-private-key-file={certificates.account_key}",
        f"--root-ca-file={certificates.authority}",
        "--use-service-account-credentials=false",
        f"--controllers={','.join(_CONTROLLERS)}",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
        # For each controller; the default limits of 20 and 30 would delay whole JobSets.
        "--kube-api-qps=500",
        "--kube-api-burst=500",
    ]


def _token_line(user: User) -> str:
    groups = ",".join(user.groups)
    return f'{user.token},{user.name},{user.name},"{groups}"\n'
