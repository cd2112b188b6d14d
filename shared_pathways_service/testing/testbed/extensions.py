"""Runs the extensions of the control plane: JobSet's controller with its webhooks, and KWOK.

KWOK serves only as every node's kubelet endpoint (logs, port-forward): without Stages, it does not
change nodes or pods.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.testing.testbed.build import Programs
from shared_pathways_service.testing.testbed.certificates import Certificates
from shared_pathways_service.testing.testbed.daemons import Daemon
from shared_pathways_service.testing.testbed.errors import TestbedError
from shared_pathways_service.testing.testbed.node_agent.nodes import MANAGED_LABEL

__all__ = ["Extensions"]

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_KWOK_KINDS = ("stages", "portforwards", "logs", "execs", "attaches")
_READY_S = 120.0
_POLL_S = 0.05
_OK = (200,)
#: A webhook's answer to an empty request; a webhook that is not ready yet answers 404.
_REGISTERED = (200, 400, 405, 415)


class Extensions:
    """Starts and stops the extensions.

    Args:
      programs: The built programs.
      directory: For logs and configuration.
      certificates: The servers' certificates.
      kubeconfig: The administrator's kubeconfig.
      ports: Three free ports.
      report: Called when a program ended by itself.
    """

    def __init__(
        self,
        programs: Programs,
        directory: Path,
        certificates: Certificates,
        kubeconfig: Path,
        *,
        ports: Sequence[int],
        report: Callable[[str], None],
    ) -> None:
        self.kubelet_port, self._webhook_port, self._health_port = ports
        self._programs = programs
        self._certificates = certificates
        self._directory = directory
        self._kwok = Daemon(
            [str(programs.path("kwok")), *self._kwok_flags(kubeconfig)],
            log=directory / "kwok.log",
            report=report,
        )
        self._jobset = Daemon(
            [
                str(programs.path("jobset")),
                f"--config={self._jobset_config()}",
                f"--kubeconfig={kubeconfig}",
            ],
            log=directory / "jobset.log",
            report=report,
        )

    async def define(self, api: KubeApi) -> None:
        """Defines their resources in an API server that is ready.

        Raises:
          TestbedError: One is not established.
        """
        crds = [self._read(f"kwok-{kind}.yaml") for kind in _KWOK_KINDS]
        crds.append(self._read("jobset-crd.yaml"))
        await asyncio.gather(*(api.request("POST", _CRDS, body=one) for [one] in crds))
        await asyncio.gather(*(self._established(api, one["metadata"]["name"]) for [one] in crds))

    async def start(self, api: KubeApi) -> None:
        """Starts them on a control plane with their resources, and waits until they are ready.

        Raises:
          TestbedError: A program does not start.
        """
        await self._kwok.start()
        await self._jobset.start()
        await self._serving(self._jobset, f"http://{LOOPBACK}:{self._health_port}/readyz", _OK)
        await self._serving(self._kwok, f"https://{LOOPBACK}:{self.kubelet_port}/healthz", _OK)
        for webhook in self._read("jobset-webhooks.yaml"):
            await self._register(api, webhook)

    async def stop(self) -> None:
        """Stops them."""
        await asyncio.gather(self._kwok.kill(), self._jobset.kill())

    async def _established(self, api: KubeApi, name: str) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            found = await api.get(f"{_CRDS}/{name}")
            conditions = found.get("status", {}).get("conditions") or ()
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return
            await asyncio.sleep(_POLL_S)
        raise TestbedError(f"{name} is not established after {_READY_S:.0f} s")

    async def _serving(self, daemon: Daemon, url: str, accepted: Container[int]) -> None:
        """Waits until an empty request gets one of the accepted statuses."""
        deadline = time.monotonic() + _READY_S
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while time.monotonic() < deadline:
                daemon.check()
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(url, ssl=False) as answer:
                        if answer.status in accepted:
                            return
                await asyncio.sleep(_POLL_S)
        raise TestbedError(f"{daemon.name} is not ready", hint=f"its log ends: {daemon.tail()}")

    async def _register(self, api: KubeApi, webhook: dict[str, Any]) -> None:
        """Registers webhooks by URL, because a service cannot point to a local process."""
        authority = base64.b64encode(self._certificates.authority.read_bytes()).decode()
        for hook in webhook["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            url = f"https://{LOOPBACK}:{self._webhook_port}{path}"
            # The controller reports readiness before all of its webhooks are ready.
            await self._serving(self._jobset, url, _REGISTERED)
            hook["clientConfig"] = {"url": url, "caBundle": authority}
        webhook["metadata"]["name"] = f"jobset-{webhook['metadata']['name']}"
        plural = f"{webhook['kind'].lower()}s"
        try:
            await api.request("POST", f"{_WEBHOOKS}/{plural}", body=webhook)
        except ApiError as error:
            raise TestbedError(f"cannot register JobSet's webhooks: {error}") from error

    def _read(self, manifest: str) -> list[dict[str, Any]]:
        text = self._programs.manifest(manifest).read_text(encoding="utf-8")
        return [document for document in yaml.safe_load_all(text) if document]

    def _kwok_flags(self, kubeconfig: Path) -> list[str]:
        return [
            f"--kubeconfig={kubeconfig}",
            f"--manage-nodes-with-label-selector={MANAGED_LABEL}",
            f"--node-ip={LOOPBACK}",
            f"--node-port={self.kubelet_port}",
            f"--server-address={LOOPBACK}:{self.kubelet_port}",
            f"--tls-cert-file={self._certificates.certificate}",
            f"--tls-private-key-file={self._certificates.key}",
            # The node agent renews the leases.
            "--node-lease-duration-seconds=0",
            "--enable-crds=Stage,PortForward,Logs,Exec,Attach",
        ]

    def _jobset_config(self) -> Path:
        path = self._directory / "jobset.json"
        certificates = self._directory / "jobset-certificates"
        certificates.mkdir()
        (certificates / "tls.crt").symlink_to(self._certificates.certificate)
        (certificates / "tls.key").symlink_to(self._certificates.key)
        webhook = {"host": LOOPBACK, "port": self._webhook_port, "certDir": str(certificates)}
        content = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": webhook,
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"{LOOPBACK}:{self._health_port}"},
        }
        path.write_text(json.dumps(content), encoding="utf-8")
        return path
