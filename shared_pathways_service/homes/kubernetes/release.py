"""A deleted proxy's slices are given back at once, though it may not have said farewell."""

from __future__ import annotations

import asyncio
import contextlib

from shared_pathways_service.cluster_state.readiness import is_over
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.homes.manager_news import ManagerNews
from shared_pathways_service.homes.racing import first_of
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.manifests.names import LABEL_SESSION

__all__ = ["give_back"]

#: Seconds in which a proxy that is being deleted may still ask for its slices.
_LATE_S = 10.0
#: Seconds in which what it said last may still be on its way.
_LAST_WORDS_S = 1.0


async def give_back(
    api: KubeApi, namespace: str, news: ManagerNews, name: str, session: str
) -> None:
    """Has the resource manager release a tenant whose Job was deleted.

    Args:
      api: The cluster's server.
      namespace: Of the Job.
      news: What the resource manager tells of the tenant.
      name: The Job's, and the tenant's.
      session: What its pods bear.
    """
    why = "its session has ended"
    if await news.release(name, why) or news.tenant_is_over:
        return
    # It may ask for its slices at this very moment, and not live to give them back: a process
    # that is being started takes no SIGTERM yet, and its pod outlives its Job by its grace.
    with contextlib.suppress(TimeoutError, SharedPathwaysError):
        async with asyncio.timeout(_LATE_S):
            await first_of(news.wait_until_heard_of(), _wait_until_gone(api, namespace, session))
    if await news.release(name, why):
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_S):
            await news.wait_until_heard_of()
    await news.release(name, why)


async def _wait_until_gone(api: KubeApi, namespace: str, session: str) -> None:
    """Returns once no pod of a session runs any more."""
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
