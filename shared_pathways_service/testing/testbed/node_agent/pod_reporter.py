"""Reports one pod to the API server, and reads its objects from there."""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import tenacity

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.testing.testbed.api import Object
from shared_pathways_service.testing.testbed.node_agent.container import LogFile, now
from shared_pathways_service.testing.testbed.node_agent.endpoint import KubeletEndpoint
from shared_pathways_service.testing.testbed.node_agent.entering import EnterScript
from shared_pathways_service.testing.testbed.node_agent.pod_status import PodRecord, status_of
from shared_pathways_service.testing.testbed.patches import ENTER_VARIABLE

__all__ = ["PodReporter"]

_log = logging.getLogger(__name__)

_KWOK = "/apis/kwok.x-k8s.io/v1alpha1"
_STRATEGIC = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"
#: Ports of the three servers, which can be forwarded even if a pod does not declare them.
_USUAL_PORTS = (29000, 29001, 29005)
_GONE = (404, 409, 410, 422)
#: Seconds between tries while the API server is unavailable.
_PAUSE_S = 0.2
#: The life of a token of a service account: longer than a testbed's, as it is not replaced.
_TOKEN_S = 30 * 86_400
_JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"


class PodReporter:
    """Writes one pod's latest status as the administrator, one write at a time, with retries."""

    def __init__(self, api: KubeApi, endpoint: KubeletEndpoint, pod: Object) -> None:
        self._api = api
        self._endpoint = endpoint
        self._known: asyncio.Task[None] | None = None
        metadata: Mapping[str, Any] = pod["metadata"]
        self._namespace: str = metadata["namespace"]
        self._name: str = metadata["name"]
        self._uid: str = metadata["uid"]
        self._node: str = pod["spec"]["nodeName"]
        self._path = f"/api/v1/namespaces/{self._namespace}/pods/{self._name}"
        self._latest: Object | None = None
        self._writer: asyncio.Task[None] | None = None
        self._events: set[asyncio.Task[None]] = set()
        self._is_silent = False

    async def begin(
        self,
        record: PodRecord,
        logs: Mapping[str, LogFile],
        scripts: Mapping[str, EnterScript],
        ports: Sequence[int],
    ) -> None:
        """Makes the pod's logs, ports and containers reachable through the kubelet endpoint."""
        entries = [
            {
                "containers": [name],
                "logsFile": str(log.path),
                "previousLogsFile": str(log.previous),
                "follow": True,
            }
            for name, log in logs.items()
        ]
        forwards = [
            {"ports": [port], "target": {"address": record.address, "port": port}}
            for port in sorted({*ports, *_USUAL_PORTS})
        ]
        execs = [
            {
                "containers": [name],
                "local": {"envs": [{"name": ENTER_VARIABLE, "value": str(script.path)}]},
            }
            for name, script in scripts.items()
        ]
        await asyncio.gather(
            self._describe("PortForward", "portforwards", {"forwards": forwards}),
            self._describe("Exec", "execs", {"execs": execs}),
            self._describe("Logs", "logs", {"logs": entries}),
        )
        known = self._endpoint.until_known(self._namespace, self._name, next(iter(logs)))
        self._known = asyncio.create_task(known)

    def silence(self) -> None:
        """Makes no reports from now on: the pod's node is lost, or the pod is gone."""
        self._is_silent = True

    def report(self, record: PodRecord) -> None:
        """Schedules a write of the status."""
        if self._is_silent:
            return
        self._latest = status_of(record, now())
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    def event(self, kind: str, reason: str, message: str) -> None:
        """Schedules a write of an event."""
        if self._is_silent:
            return
        task = asyncio.create_task(self._write_event(kind, reason, message))
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def delete(self, record: PodRecord) -> None:
        """Writes the last status, and deletes the pod from the API server."""
        self.report(record)
        assert self._writer is not None
        await self._writer
        # The parameter of the query would be ignored, because there is a body.
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self._uid},
        }
        await self._persist("DELETE", self._path, body, "application/json")

    async def close(self) -> None:
        """Cancels requests in progress."""
        tasks = [*self._events, *(task for task in (self._writer, self._known) if task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def api_server(self) -> tuple[str, str]:
        """The host and the port of the API server."""
        host, _, port = self._api.access.server.removeprefix("https://").rpartition(":")
        return host, port

    async def services(self) -> list[str]:
        """Returns the names of the services in the pod's namespace.

        Those that its JobSets' controller is about to make are among them: in a cluster a program
        finds their names a moment later, but here names are replaced as a container starts.
        """
        inside = f"namespaces/{self._namespace}"
        found: dict[str, None] = {}
        for path in (f"/api/v1/{inside}/services", f"{_JOBSETS}/{inside}/jobsets"):
            answer = await self._persist("GET", path)
            found |= dict.fromkeys(
                one["metadata"]["name"] for one in (answer or {}).get("items", ())
            )
        return list(found)

    async def node_labels(self) -> dict[str, str]:
        """Returns the labels of the pod's node."""
        node = await self._persist("GET", f"/api/v1/nodes/{self._node}")
        return dict(node["metadata"].get("labels") or {}) if node else {}

    async def data_of(self, resource: str, name: str) -> dict[str, bytes] | None:
        """Returns the contents of a Secret or ConfigMap; None while there is none."""
        path = f"/api/v1/namespaces/{self._namespace}/{resource}/{name}"
        found = await self._persist("GET", path)
        if found is None:
            return None
        data = found.get("data") or {}
        if resource == "secrets":
            return {key: base64.b64decode(value) for key, value in data.items()}
        binary = found.get("binaryData") or {}
        texts = {key: str(value).encode() for key, value in data.items()}
        return texts | {key: base64.b64decode(value) for key, value in binary.items()}

    async def token_of(self, account: str, audience: str) -> bytes | None:
        """Returns a token of a service account that ends with the pod; None without the account.

        Args:
          account: The account's name.
          audience: Whom the token is for; empty: the API server.
        """
        pod = {"apiVersion": "v1", "kind": "Pod", "name": self._name, "uid": self._uid}
        spec = {"expirationSeconds": _TOKEN_S, "boundObjectRef": pod}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {**spec, "audiences": [audience]} if audience else spec,
        }
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        made = await self._persist("POST", path, body, "application/json")
        return None if made is None else str(made["status"]["token"]).encode()

    async def _write(self) -> None:
        while (status := self._latest) is not None:
            self._latest = None
            if self._known is not None and status["phase"] != "Pending":
                await self._known
            # Never for a later pod of the same name.
            body = {"metadata": {"uid": self._uid}, "status": status}
            await self._persist("PATCH", f"{self._path}/status", body, _STRATEGIC)

    async def _write_event(self, kind: str, reason: str, message: str) -> None:
        body = {
            "metadata": {"name": f"{self._name}.{uuid.uuid4().hex[:16]}"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": self._name,
                "namespace": self._namespace,
                "uid": self._uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "source": {"component": "kubelet", "host": self._node},
        }
        path = f"/api/v1/namespaces/{self._namespace}/events"
        await self._persist("POST", path, body, "application/json")

    async def _describe(self, kind: str, resource: str, spec: Object) -> None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self._name, "uid": self._uid}
        body = {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": kind,
            # Gone with the pod.
            "metadata": {"name": self._name, "ownerReferences": [owner]},
            "spec": spec,
        }
        path = f"{_KWOK}/namespaces/{self._namespace}/{resource}"
        if await self._persist("POST", path, body, "application/json") is None:
            # An earlier pod's object of this name is not garbage-collected yet.
            await self._persist("PATCH", f"{path}/{self._name}", body, _MERGE)

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(ApiUnreachable), wait=tenacity.wait_fixed(_PAUSE_S)
    )
    async def _persist(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object | None:
        """Retries a request until it is answered; returns None if its object is gone."""
        try:
            return await self._api.request(method, path, body=body, content_type=content_type)
        except AccessDenied:
            return None  # its namespace is being deleted
        except ApiError as error:
            if error.status not in _GONE:
                _log.warning("%s %s: %s", method, path, error)
            return None
