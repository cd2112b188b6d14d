"""Persistent volumes: directories of this machine that any node can mount.

The control plane's own controllers bind claims, attach volumes to nodes, and refuse a second node.
This is the part of a storage vendor: it creates, resizes and deletes volumes of `STORAGE_CLASS`,
confirms attachments, and mounts attached volumes as the kubelet does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.testing.testbed.api import Object

__all__ = ["STORAGE_CLASS", "Storage"]

_log = logging.getLogger(__name__)

#: The default StorageClass of the testbed.
STORAGE_CLASS = "standard"

_DRIVER = "storage.testbed.sps.dev"
_STORAGE = "/apis/storage.k8s.io/v1"
_ATTACHMENTS = f"{_STORAGE}/volumeattachments"
_VOLUMES = "/api/v1/persistentvolumes"
_CLAIMS = "/api/v1/persistentvolumeclaims"
_MERGE = "application/merge-patch+json"
#: The annotation by which the control plane asks for a claim's volume.
_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
#: Seconds between two polls, and between tries.
_PAUSE_S = 0.2

_CLASS = {
    "metadata": {
        "name": STORAGE_CLASS,
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": _DRIVER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
    "allowVolumeExpansion": True,
}


class Storage:
    """The volumes of a testbed.

    Args:
      api: The API server, as the administrator.
      directory: For the volumes' directories.
      is_up: Whether a node is there to report its volumes.
    """

    def __init__(self, api: KubeApi, directory: Path, is_up: Callable[[str], bool]) -> None:
        self._api = api
        self._directory = directory
        self._is_up = is_up
        #: By node and volume, the pods (by uid) that use it.
        self._users: dict[str, dict[str, set[str]]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Creates the StorageClass, and starts to serve claims."""
        self._directory.mkdir()
        driver = {"metadata": {"name": _DRIVER}, "spec": {"attachRequired": True}}
        await self._api.request("POST", f"{_STORAGE}/csidrivers", body=driver)
        await self._api.request("POST", f"{_STORAGE}/storageclasses", body=_CLASS)
        for path, take in (
            (_CLAIMS, self._serve_claim),
            (_ATTACHMENTS, self._confirm),
            (_VOLUMES, self._reclaim),
        ):
            self._tasks.append(asyncio.create_task(self._follow(path, take)))

    async def stop(self) -> None:
        """Stops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def mount(self, pod: Object, claim: str) -> Path:
        """Waits until a claim's volume is attached to a pod's node; returns its directory."""
        namespace, node = pod["metadata"]["namespace"], pod["spec"]["nodeName"]
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}"
        while True:
            # (The scheduler binds a pod only after its claims.)
            found = await self._answered(path)
            if "deletionTimestamp" not in found["metadata"]:
                break
            await asyncio.sleep(_PAUSE_S)
        volume = found["spec"]["volumeName"]
        users = self._users.setdefault(node, {})
        users.setdefault(_attachable(volume), set()).add(pod["metadata"]["uid"])
        await self.report(node)
        while True:
            status = (await self._answered(f"/api/v1/nodes/{node}")).get("status", {})
            attached = status.get("volumesAttached") or ()
            if any(one["name"] == _attachable(volume) for one in attached):
                return self._directory / str(volume)
            await asyncio.sleep(_PAUSE_S)

    async def unmount(self, pod: Object) -> None:
        """Ends a pod's use of its volumes: they may go to another node."""
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        before = self._users.get(node, {})
        after = {volume: left for volume, uids in before.items() if (left := uids - {uid})}
        self._users[node] = after
        if before.keys() != after.keys():
            await self.report(node)

    async def report(self, node: str) -> None:
        """Writes a node's volumes in use; until then they are not detached from it."""
        while self._is_up(node):
            status = {"status": {"volumesInUse": sorted(self._users.get(node, ()))}}
            path = f"/api/v1/nodes/{node}/status"
            try:
                await self._api.request("PATCH", path, body=status, content_type=_MERGE)
            except ApiUnreachable:
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _answered(self, path: str) -> dict[str, Any]:
        while True:
            with contextlib.suppress(ApiUnreachable):
                return await self._api.get(path)
            await asyncio.sleep(_PAUSE_S)

    async def _follow(
        self, path: str, take: Callable[[Mapping[str, Any]], Awaitable[None]]
    ) -> None:
        while True:
            with contextlib.suppress(SharedPathwaysError):
                events = watch(self._api, path, give_up_after_s=math.inf)
                async with contextlib.aclosing(events):
                    async for event in events:
                        if event.kind in ("ADDED", "MODIFIED"):
                            await self._take(take, event.object)
            await asyncio.sleep(_PAUSE_S)

    @staticmethod
    async def _take(
        take: Callable[[Mapping[str, Any]], Awaitable[None]], found: Mapping[str, Any]
    ) -> None:
        try:
            await take(found)
        except ApiError as error:
            # It is done already, or gone; any other trouble should be seen.
            if error.status not in (404, 409):
                _log.warning("%s: %s", found["metadata"]["name"], error)

    async def _serve_claim(self, claim: Mapping[str, Any]) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        asked = (metadata.get("annotations") or {}).get(_PROVISIONER) == _DRIVER
        if not asked or "deletionTimestamp" in metadata:
            return
        size = spec["resources"]["requests"]["storage"]
        if "volumeName" in spec:
            await self._resize(claim, size)
            return
        name = f"pvc-{metadata['uid']}"
        (self._directory / name).mkdir(exist_ok=True)
        volume = {
            "metadata": {
                "name": name,
                "annotations": {"pv.kubernetes.io/provisioned-by": _DRIVER},
            },
            "spec": {
                "capacity": {"storage": size},
                "accessModes": spec["accessModes"],
                "storageClassName": spec["storageClassName"],
                "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": _DRIVER, "volumeHandle": name},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    **{key: metadata[key] for key in ("namespace", "name", "uid")},
                },
            },
        }
        await self._api.request("POST", _VOLUMES, body=volume)

    async def _resize(self, claim: Mapping[str, Any], size: str) -> None:
        status, metadata = claim.get("status") or {}, claim["metadata"]
        if status.get("phase") != "Bound" or status["capacity"]["storage"] == size:
            return
        capacity = {"capacity": {"storage": size}}
        await self._api.patch(f"{_VOLUMES}/{claim['spec']['volumeName']}", {"spec": capacity})
        path = f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims"
        body = {"status": {**capacity, "conditions": []}}
        await self._api.patch(f"{path}/{metadata['name']}/status", body)

    async def _confirm(self, attachment: Mapping[str, Any]) -> None:
        status = attachment.get("status") or {}
        if attachment["spec"]["attacher"] == _DRIVER and not status.get("attached"):
            path = f"{_ATTACHMENTS}/{attachment['metadata']['name']}/status"
            await self._api.patch(path, {"status": {"attached": True}})

    async def _reclaim(self, volume: Mapping[str, Any]) -> None:
        """Deletes a volume whose claim is gone."""
        is_ours = (volume["spec"].get("csi") or {}).get("driver") == _DRIVER
        if not is_ours or (volume.get("status") or {}).get("phase") != "Released":
            return
        name = volume["metadata"]["name"]
        await asyncio.to_thread(shutil.rmtree, self._directory / name, ignore_errors=True)
        await self._api.request("DELETE", f"{_VOLUMES}/{name}")


def _attachable(volume: str) -> str:
    """Returns the name by which a node's status refers to a volume."""
    return f"kubernetes.io/csi/{_DRIVER}^{volume}"
