"""Releases a deleted proxy's slices at once, even if it did not release them itself."""

from __future__ import annotations

import contextlib

from shared_pathways_service.cluster_state.readiness import is_over
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.homes.manager_news import ManagerNews
from shared_pathways_service.homes.racing import first_of
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.manifests.names import LABEL_SESSION
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["release_slices"]


async def release_slices(
    api: KubeApi, namespace: str, news: ManagerNews, name: str, session: str
) -> None:
    """Asks the resource manager to release a tenant whose Job was deleted.

    Args:
      api: The cluster's API server.
      namespace: The namespace of the Job.
      news: The resource manager's events of the tenant.
      name: The name of the Job and the tenant.
      session: The session's label on its pods.
    """
    why = "its session has ended"
    if await news.release(name, why) or news.tenant_is_over:
        return
    # The proxy may be requesting its slices now, and not live to release them: a starting process
    # does not handle SIGTERM yet, and its pod outlives its Job by the grace period.
    with contextlib.suppress(TimeoutError, SharedPathwaysError):
        async with within(timeouts.RELEASE_LATE_REQUEST):
            await first_of(news.wait_until_known(), _wait_until_gone(api, namespace, session))
    if await news.release(name, why):
        return
    with contextlib.suppress(TimeoutError):
        async with within(timeouts.RELEASE_LAST_MESSAGE):
            await news.wait_until_known()
    await news.release(name, why)


async def _wait_until_gone(api: KubeApi, namespace: str, session: str) -> None:
    """Returns once no pod of a session runs."""
    left: set[str] = set()
    path = collection("pods", namespace)
    params = {"labelSelector": f"{LABEL_SESSION}={session}"}
    async with contextlib.aclosing(watch(api, path, params=params)) as changes:
        is_complete = False
        async for change in changes:
            if change.kind == "SYNCED":
                is_complete = True
            elif change.kind == "DELETED" or is_over(change.object):
                left.discard(str(change.object["metadata"]["uid"]))
            else:
                left.add(str(change.object["metadata"]["uid"]))
            if is_complete and not left:
                return
