"""What is looked at in a cluster before anything is created there."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import platform
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from shared_pathways_service.core.kubernetes.images import (
    Versions,
    check_skew,
    proxy_image_for,
    sidecar_skew,
)
from shared_pathways_service.core.kubernetes.log_lines import LogEvent, parse_line
from shared_pathways_service.core.kubernetes.names import LABEL_JOBSET
from shared_pathways_service.core.kubernetes.permissions import (
    Permission,
    access_denied,
    access_review,
    evaluate,
    is_allowed,
    needed,
    rules_review,
)
from shared_pathways_service.core.kubernetes.readiness import (
    ServiceReadiness,
    check_instances,
    read_readiness,
    service_selector,
)
from shared_pathways_service.core.kubernetes.services import Service, find_service
from shared_pathways_service.core.requests import DEFAULT_PROXY_IMAGE
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.homes.base import HomeEvent, ProxySpec, Tell
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection, pod_log
from shared_pathways_service.kube.watch import watch

__all__ = ["Preflight"]

Object = Mapping[str, Any]

#: Lines of the resource manager's log that are looked at for detail, and seconds for them.
_LOG_LINES = 500
_LOG_S = 5.0


class Preflight:
    """One look at a service, which may take until it is ready.

    Args:
      api: The server.
      namespace: Where the service is.
      address: ``host:port`` of its resource manager; empty: of the one there is.
    """

    def __init__(self, api: KubeApi, namespace: str, address: str) -> None:
        self._api = api
        self._namespace = namespace
        self._address = address

    async def run(self, spec: ProxySpec, tell: Tell) -> ServiceReadiness:
        """Checks permissions, service, types and versions, and waits until slices are ready.

        Returns:
          How the service stands: enough of it is ready for the request.

        Raises:
          AccessDenied: Something that is needed is not permitted; all of it is listed.
          InvalidRequestError: The service has no such slices, or not so many, or no sidecar.
          ServiceNotFound: There is no such service, or more than one.
          ServiceNotReady: It cannot become ready by itself.
          VersionSkew: Client and service cannot work together.
        """
        review, jobsets, pods = await _all_of(
            self._review(), self._list("jobsets"), self._list("pods", labelSelector=LABEL_JOBSET)
        )
        # What is missing is told as a whole, rather than by the first request that is refused.
        await self._check_permissions(review, needed(ours=False))
        service = find_service(_items(jobsets), self._address, namespace=self._namespace)
        if service.is_ours:
            await self._check_permissions(review, needed(ours=True))
        check_instances(service, spec.virtual_slices)
        for warning in _skews(spec, service):
            tell(HomeEvent(kind="service.warning", reason=warning))
        return await self._wait_until_ready(spec, service, _raised(pods), tell)

    # ---- permissions

    async def _review(self) -> Object:
        body = rules_review(self._namespace)
        return await self._api.request("POST", collection("selfsubjectrulesreviews"), body=body)

    async def _check_permissions(self, review: object, wanted: Sequence[Permission]) -> None:
        verdict = evaluate(_raised(review), wanted)
        missing = list(verdict.missing)
        if verdict.unknown:
            allowed = await asyncio.gather(*(self._is_allowed(p) for p in verdict.unknown))
            missing += [p for p, ok in zip(verdict.unknown, allowed, strict=True) if not ok]
        if missing:
            raise access_denied(missing, self._namespace)

    async def _is_allowed(self, permission: Permission) -> bool:
        body = access_review(permission, self._namespace)
        path = collection("selfsubjectaccessreviews")
        return is_allowed(await self._api.request("POST", path, body=body))

    # ---- readiness

    async def _list(self, resource: str, **params: str) -> Object:
        return await self._api.get(collection(resource, self._namespace), params=params)

    async def _wait_until_ready(
        self, spec: ProxySpec, service: Service, listed: Object, tell: Tell
    ) -> ServiceReadiness:
        pods = {str(pod["metadata"]["uid"]): pod for pod in listed.get("items") or ()}
        log: list[LogEvent] = []

        def look() -> ServiceReadiness | None:
            found = read_readiness(service, pods.values(), log)
            if service.ended:
                raise found.error()
            if found.suffices_for(spec.virtual_slices, spec.num_elastic_slices):
                return found
            tell(
                HomeEvent(
                    kind="service.waiting",
                    reason=found.reason,
                    data={
                        "ready": found.ready,
                        "wanted": found.wanted,
                        "pods": "\n".join(found.troubles),
                    },
                )
            )
            return None

        if (ready := look()) is not None:
            return ready
        log += await self._manager_log(read_readiness(service, pods.values()))
        changes = watch(
            self._api,
            collection("pods", self._namespace),
            params={"labelSelector": service_selector(service)},
            resource_version=str(listed["metadata"]["resourceVersion"]),
            known=list(pods.values()),
        )
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.kind == "DELETED":
                    pods.pop(str(change.object["metadata"]["uid"]), None)
                elif change.object:
                    pods[str(change.object["metadata"]["uid"])] = change.object
                if (ready := look()) is not None:
                    return ready
        raise AssertionError("a watch has no end")

    async def _manager_log(self, found: ServiceReadiness) -> list[LogEvent]:
        """Returns what the resource manager's log adds; nothing where it cannot be read."""
        if found.head is None:
            return []
        path = pod_log(self._namespace, found.head.name)
        params = {"tailLines": str(_LOG_LINES)}
        events: list[LogEvent] = []
        with contextlib.suppress(SharedPathwaysError, TimeoutError):
            async with (
                asyncio.timeout(_LOG_S),
                contextlib.aclosing(self._api.stream_lines(path, params=params)) as lines,
            ):
                read = [parse_line(line) async for line in lines]
                events = [event for event in read if event is not None]
        return events


async def _all_of(*coroutines: Coroutine[Any, Any, Object]) -> list[Object | BaseException]:
    """Runs all of them to their ends; errors are results."""
    return await asyncio.gather(*coroutines, return_exceptions=True)


def _raised(result: object) -> Object:
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, Mapping)
    return result


def _items(result: object) -> Iterable[Object]:
    return _raised(result).get("items") or ()


def _skews(spec: ProxySpec, service: Service) -> list[str]:
    """Returns what may not work together; raises `VersionSkew` for what cannot."""
    client = Versions(jax=importlib.metadata.version("jax"), python=platform.python_version())
    chosen = spec.image if spec.image != DEFAULT_PROXY_IMAGE else ""
    warnings = [check_skew(client, chosen or proxy_image_for(service.image))]
    if spec.options.sidecar:
        if not service.sidecar_image:
            raise InvalidRequestError(
                "proxy_options",
                "sidecar:true",
                f"a service with a colocated Python sidecar; {service.name} has none",
            )
        warnings.append(sidecar_skew(client, service.sidecar_image))
    return [warning for warning in warnings if warning]
