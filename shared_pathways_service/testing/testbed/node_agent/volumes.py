"""Volumes of a pod: directories of its own, the node's, and those of `storage`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tenacity

from shared_pathways_service.testing.testbed.api import Object
from shared_pathways_service.testing.testbed.node_agent.pod_reporter import PodReporter
from shared_pathways_service.testing.testbed.node_agent.storage import Storage

__all__ = ["Volumes"]

#: Seconds between the first two requests for an object that is missing; doubled up to the longest.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.6
_MODE = 0o644

T = TypeVar("T")


class Volumes:
    """The volumes of one pod.

    Secrets, ConfigMaps, emptyDir, hostPath, claims of persistent volumes, and tokens of service
    accounts are known.
    """

    def __init__(
        self, pod: Object, directory: Path, reporter: PodReporter, storage: Storage
    ) -> None:
        self._pod = pod
        self._volumes: list[Mapping[str, Any]] = pod["spec"].get("volumes") or []
        self._directory = directory
        self._reporter = reporter
        self._storage = storage
        #: Directories of persistent volumes, by the volume's name in the pod.
        self._persistent: dict[str, Path] = {}

    async def mount(self) -> None:
        """Creates all volumes; waits for missing objects."""
        for volume in self._volumes:
            if "persistentVolumeClaim" in volume:
                claim = str(volume["persistentVolumeClaim"]["claimName"])
                self._persistent[volume["name"]] = await self._storage.mount(self._pod, claim)
                continue
            path = self._path(volume)
            path.mkdir(parents=True, exist_ok="hostPath" in volume)
            await self._fill_from(volume, path, volume["name"])
            for source in (volume.get("projected") or {}).get("sources") or ():
                await self._fill_from(source, path, volume["name"])

    def places(self, container: Object) -> dict[str, str]:
        """Returns the actual directories of a container's mounts."""
        known = {volume["name"]: str(self._path(volume)) for volume in self._volumes}
        mounts = container.get("volumeMounts") or ()
        places = {
            m["mountPath"].rstrip("/"): self._within(known[m["name"]], m.get("subPath"))
            for m in mounts
            if m["name"] in known
        }
        # A mount at its actual path needs no replacement.
        return {path: place for path, place in places.items() if path != place}

    @staticmethod
    def _within(directory: str, sub_path: str | None) -> str:
        if not sub_path:
            return directory
        path = Path(directory, sub_path)
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    async def _fill_from(self, source: Mapping[str, Any], path: Path, volume: str) -> None:
        """Fills a directory from what a volume, or one source of it, names."""
        for kind, resource, key in (
            ("secret", "secrets", "secretName"),
            ("configMap", "configmaps", "name"),
        ):
            if kind in source:
                name = str(source[kind][key])
                data = await self._found(
                    functools.partial(self._reporter.data_of, resource, name),
                    f'{resource.removesuffix("s")} "{name}"',
                    volume,
                )
                self._fill(path, source[kind], data)
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            account = str(self._pod["spec"].get("serviceAccountName") or "default")
            token = await self._found(
                functools.partial(
                    self._reporter.token_of, account, str(wanted.get("audience") or "")
                ),
                f'serviceaccount "{account}"',
                volume,
            )
            self._fill(path, {}, {wanted["path"]: token})
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            if item["fieldRef"]["fieldPath"] == "metadata.namespace":
                self._fill(path, {}, {item["path"]: self._pod["metadata"]["namespace"].encode()})

    def _path(self, volume: Mapping[str, Any]) -> Path:
        if "hostPath" in volume:
            # The node is this machine.
            return Path(str(volume["hostPath"]["path"]))
        if (mounted := self._persistent.get(str(volume["name"]))) is not None:
            return mounted
        return self._directory / str(volume["name"])

    async def _found(self, read: Callable[[], Awaitable[T | None]], what: str, volume: str) -> T:
        def report(state: tenacity.RetryCallState) -> None:
            if state.attempt_number == 1:
                text = f'MountVolume.SetUp failed for volume "{volume}": {what} not found'
                self._reporter.event("Warning", "FailedMount", text)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(lambda data: data is None),
            wait=tenacity.wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
            before_sleep=report,
        )
        data: T | None = await retrying(read)
        assert data is not None
        return data

    @staticmethod
    def _fill(path: Path, source: Mapping[str, Any], data: Mapping[str, bytes]) -> None:
        mode = source.get("defaultMode", _MODE)
        paths = {item["key"]: item["path"] for item in source.get("items") or ()}
        for key, content in data.items():
            if paths and key not in paths:
                continue
            file = path / paths.get(key, key)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            file.write_bytes(content)
            file.chmod(mode)
