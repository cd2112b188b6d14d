"""A service takes no new connections, and those that there are come to their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.cluster_state.service_tenants import in_use, tenants_of
from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.manifests.names import ANNOTATION_DRAINING, PROXY_SELECTOR
from shared_pathways_service.operations.cluster_access import Cluster, Object

__all__ = ["drained"]

#: What the server says of a JobSet that is gone, and of another one of its name.
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
    """Has a service without tenants for the length of the block.

    Args:
      cluster: Where.
      jobset: The service's.
      why: What those are told who connect meanwhile.
      timeout_s: Seconds for its tenants to leave.
      evict: Whether those that are left then are ended.
      note: Gets what is under way, as sentences for people.

    Raises:
      SlicesTaken: There are tenants still; they are named, and new ones are let in again.
    """
    path = item("jobsets", cluster.namespace, str(jobset["metadata"]["name"]))
    uid = jobset["metadata"]["uid"]
    try:
        await cluster.api.patch(path, _mark(uid, why))
    except (AccessDenied, ApiError):
        raise
    except BaseException:
        # The answer was lost, or not waited for: it may be marked.
        await _let_in_again(cluster, path, jobset, note)
        raise
    try:
        await _until_empty(cluster, jobset, timeout_s=timeout_s, evict=evict, note=note)
        yield
    finally:
        await _let_in_again(cluster, path, jobset, note)


async def _let_in_again(
    cluster: Cluster, path: str, jobset: Object, note: Callable[[str], object]
) -> None:
    """Unmarks a service; that it cannot be is told, as what came before is the error."""
    metadata = jobset["metadata"]
    try:
        await cluster.api.patch(path, _mark(metadata["uid"], None))
    except SharedPathwaysError as error:
        # Where it was deleted, there is nothing to unmark, or another one of the same name.
        if isinstance(error, ApiError) and error.reason in _ANOTHER_OR_NONE:
            return
        name = metadata["name"]
        note(
            f"the service {name} may take no new connections still: {error.message} hint: "
            f"`kubectl annotate jobset {name} {ANNOTATION_DRAINING}- "
            f"--namespace {cluster.namespace}` lets them in"
        )


def _mark(uid: str, why: str | None) -> Object:
    return {"metadata": {"uid": uid, "annotations": {ANNOTATION_DRAINING: why}}}


async def _until_empty(
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
        note(f"waiting for {_names(left)} to end, no new connections are let in")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await _until_left(cluster, name)
        left = tenants_of(name, await cluster.proxies())
    if left and not evict:
        hint = "--drain-timeout waits for their end, --evict ends them"
        raise in_use(name, left, hint=hint)
    if left:
        note(f"ending {_names(left)}")
        await asyncio.gather(*(cluster.delete(proxy) for proxy in left))


async def _until_left(cluster: Cluster, name: str) -> None:
    path = collection("jobs", cluster.namespace)
    changes = watch(cluster.api, path, params={"labelSelector": PROXY_SELECTOR})
    async with contextlib.aclosing(changes):
        async for _ in changes:
            if not tenants_of(name, await cluster.proxies()):
                return


def _names(proxies: list[KnownProxy]) -> str:
    return ", ".join(f"{proxy.name} ({proxy.holder})" for proxy in proxies)
