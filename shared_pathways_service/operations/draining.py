"""Stops new connections to a service, and waits for the end of existing ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy, in_use, tenants_of
from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.manifests.names import ANNOTATION_DRAINING, PROXY_SELECTOR
from shared_pathways_service.operations.cluster_access import Cluster, Object

__all__ = ["drained"]

#: Status codes of the API server for a deleted JobSet, and for a new one of the same name.
_ANOTHER_OR_NONE = ("NotFound", "Conflict", "Invalid")


@contextlib.asynccontextmanager
async def drained(
    cluster: Cluster,
    jobset: Object,
    *,
    why: str,
    timeout_s: float,
    evict: bool,
    note: Callable[[str], object],
) -> AsyncIterator[None]:
    """Keeps a service without tenants for the length of the block.

    Args:
      cluster: The cluster.
      jobset: The service's JobSet.
      why: The reason for refusing new connections.
      timeout_s: Seconds for existing connections to end.
      evict: Whether the remaining connections are then ended.
      note: Called with sentences about the progress, for people.

    Raises:
      SlicesTaken: Connections remain, which the error names; new connections are allowed again.
    """
    path = item("jobsets", cluster.namespace, str(jobset["metadata"]["name"]))
    uid = jobset["metadata"]["uid"]
    try:
        await cluster.api.patch(path, _mark(uid, why))
    except (AccessDenied, ApiError):
        raise
    except BaseException:
        # The answer was lost or not awaited: the service may be marked.
        await _unmark(cluster, path, jobset, note)
        raise
    try:
        await _wait_until_empty(cluster, jobset, timeout_s=timeout_s, evict=evict, note=note)
        yield
    finally:
        await _unmark(cluster, path, jobset, note)


async def _unmark(
    cluster: Cluster, path: str, jobset: Object, note: Callable[[str], object]
) -> None:
    """Removes a service's mark; only reports a failure, so as not to replace the actual error."""
    metadata = jobset["metadata"]
    try:
        await cluster.api.patch(path, _mark(metadata["uid"], None))
    except SharedPathwaysError as error:
        # If the JobSet was deleted, or replaced by another one, there is nothing to unmark.
        if isinstance(error, ApiError) and error.reason in _ANOTHER_OR_NONE:
            return
        name = metadata["name"]
        command = cluster.kubectl("annotate", "jobset", name, f"{ANNOTATION_DRAINING}-")
        note(
            f"the service {name} may still refuse new connections: {error.message} hint: "
            f"`{command}` allows them"
        )


def _mark(uid: str, why: str | None) -> Object:
    return {"metadata": {"uid": uid, "annotations": {ANNOTATION_DRAINING: why}}}


async def _wait_until_empty(
    cluster: Cluster,
    jobset: Object,
    *,
    timeout_s: float,
    evict: bool,
    note: Callable[[str], object],
) -> None:
    name = str(jobset["metadata"]["name"])
    left = tenants_of(name, await cluster.proxies())
    if left and timeout_s:
        note(f"waiting for {_names(left)} to end; new connections are refused")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await _wait_until_left(cluster, name)
        left = tenants_of(name, await cluster.proxies())
    if left and not evict:
        hint = "--drain-timeout waits for them to end, --evict ends them"
        raise in_use(name, left, hint=hint)
    if left:
        note(f"ending {_names(left)}")
        await asyncio.gather(*(cluster.delete(proxy) for proxy in left))


async def _wait_until_left(cluster: Cluster, name: str) -> None:
    path = collection("jobs", cluster.namespace)
    changes = watch(cluster.api, path, params={"labelSelector": PROXY_SELECTOR})
    async with contextlib.aclosing(changes):
        async for _ in changes:
            if not tenants_of(name, await cluster.proxies()):
                return


def _names(proxies: list[KnownProxy]) -> str:
    return ", ".join(f"{proxy.name} ({proxy.holder})" for proxy in proxies)
