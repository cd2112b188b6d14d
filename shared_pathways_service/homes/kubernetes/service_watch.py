"""Follows a service in a cluster: until it is ready, or to see whether it fails."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.cluster_state.readiness import ServiceReadiness, service_selector
from shared_pathways_service.cluster_state.services import Service, read_service
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.events import session as ev
from shared_pathways_service.homes.base import Tell
from shared_pathways_service.homes.kubernetes.service_view import ServiceView
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.kube.watch import WatchEvent, watch

__all__ = ["ServiceWatch", "find_failure", "items_of"]

Object = Mapping[str, Any]


class ServiceWatch:
    """A service, followed from lists of JobSets and of pods.

    Args:
      api: The API server.
      service: The service as its JobSet described it.
      jobsets: The list of JobSets, with its version.
      pods: The list of its pods, with its version; pods of others are ignored.
    """

    def __init__(self, api: KubeApi, service: Service, *, jobsets: Object, pods: Object) -> None:
        self.view = ServiceView(api, service, items_of(pods))
        self._api = api
        self._namespace = service.namespace
        self._jobset = [one for one in items_of(jobsets) if one["metadata"]["uid"] == service.uid]
        self._versions = {"jobsets": _version(jobsets), "pods": _version(pods)}
        #: By the event loop's clock: when the readiness that was read last may change by itself.
        self._changes_at: float | None = None

    async def wait_until(
        self, is_enough: Callable[[ServiceReadiness], bool], tell: Tell
    ) -> ServiceReadiness:
        """Waits until the service is ready to a degree; the caller sets a deadline.

        Args:
          is_enough: Whether its readiness is enough.
          tell: Called with what is waited for.

        Raises:
          ServiceNotReady: It cannot become ready by itself.
        """
        view = self.view

        def on_trouble(trouble: str) -> None:
            _tell_waiting(view.readiness, tell, trouble)

        async with contextlib.aclosing(self._changes(on_trouble)) as changes:
            while True:
                found = self._read()
                if found.service.ended:
                    raise found.error()
                if is_enough(found):
                    return found
                if found.is_hopeless:
                    raise found.error()
                _tell_waiting(found, tell)
                if not await view.find_reasons():
                    await anext(changes)

    async def wait_until_settled(self, is_enough: Callable[[ServiceReadiness], bool]) -> None:
        """Waits until its servers have survived their starts, or it is not ready any more."""
        within_s = self.view.readiness.settles_in_s
        if not within_s:
            return
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(within_s),
                contextlib.aclosing(self._changes()) as changes,
            ):
                while is_enough(self._read()):
                    await anext(changes)

    def _read(self) -> ServiceReadiness:
        """Returns the readiness, and notes when time alone may change it."""
        found = self.view.readiness
        within_s = found.changes_in_s
        now = asyncio.get_running_loop().time()
        self._changes_at = None if within_s is None else now + within_s
        return found

    async def _changes(
        self, on_trouble: Callable[[str], object] = lambda _: None
    ) -> AsyncGenerator[None, None]:
        """Applies changes to the view; yields after each, and when time alone may change it.

        The time is that of the caller's reading: meanwhile it may have passed.
        """
        view = self.view
        queue: asyncio.Queue[tuple[str, WatchEvent] | Exception] = asyncio.Queue()

        async def follow(resource: str, params: Mapping[str, str], known: Sequence[Object]) -> None:
            try:
                changes = watch(
                    self._api,
                    collection(resource, self._namespace),
                    params=params,
                    resource_version=self._versions[resource],
                    known=known,
                    on_trouble=on_trouble,
                )
                async with contextlib.aclosing(changes):
                    async for change in changes:
                        queue.put_nowait((resource, change))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                queue.put_nowait(error)

        of_service = {"labelSelector": service_selector(view.service)}
        of_jobset = {"fieldSelector": f"metadata.name={view.service.name}"}
        tasks = [
            asyncio.create_task(follow("pods", of_service, view.pods)),
            asyncio.create_task(follow("jobsets", of_jobset, self._jobset)),
        ]
        try:
            while True:
                try:
                    async with asyncio.timeout_at(self._changes_at):
                        news = await queue.get()
                except TimeoutError:
                    yield
                    continue
                if isinstance(news, Exception):
                    raise news
                if view.take(*news):
                    yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def find_failure(
    api: KubeApi, service: Service, tenant: TenantRequest
) -> ServiceNotReady | None:
    """Returns why a service is not ready for a request any more; None: it is.

    A server without a readiness probe is ready while it starts, so this waits until servers that
    have just started have survived that. The caller sets a deadline.

    Args:
      api: The API server.
      service: The service as it was when it was ready.
      tenant: The request.
    """
    namespace, of_service = service.namespace, {"labelSelector": service_selector(service)}
    pods, jobsets = await asyncio.gather(
        api.get(collection("pods", namespace), params=of_service),
        api.get(collection("jobsets", namespace)),
    )
    found = map(read_service, items_of(jobsets))
    present = next((one for one in found if one is not None and one.uid == service.uid), None)
    if present is None:
        present = dataclasses.replace(service, ended="its JobSet was deleted")
    watching = ServiceWatch(api, present, jobsets=jobsets, pods=pods)

    def suffices(readiness: ServiceReadiness) -> bool:
        return readiness.suffices_for(tenant.type_names, tenant.elastic_slices)

    view = watching.view
    if suffices(view.readiness):
        await watching.wait_until_settled(suffices)
    if suffices(view.readiness):
        return None
    await view.find_reasons()
    return view.readiness.error(
        hint="connect again, which waits for it; kubectl describe shows details of a pod"
    )


def _tell_waiting(found: ServiceReadiness, tell: Tell, trouble: str = "") -> None:
    reason, pods = trouble or found.reason, tuple(found.troubles)
    tell(ev.ServiceWaiting(reason=reason, ready=found.ready, wanted=found.wanted, pods=pods))


def items_of(listed: Object) -> Sequence[Object]:
    """Returns the objects of a list that the API server returned."""
    return list(listed.get("items") or ())


def _version(listed: Object) -> str:
    return str(listed["metadata"]["resourceVersion"])
