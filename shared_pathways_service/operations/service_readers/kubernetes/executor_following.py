"""Follows the logs of a connection's executors, which are in the logs of workers."""

from __future__ import annotations

import asyncio
import contextlib

from shared_pathways_service.cluster_state.proxy_jobs import known_proxy
from shared_pathways_service.homes.racing import first_of
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.service_readers.kubernetes.pod_logs import PodLogs
from shared_pathways_service.patience import timeouts

__all__ = ["follow_until_proxy_ends"]


async def follow_until_proxy_ends(cluster: Cluster, name: str, logs: PodLogs, lines: int) -> None:
    """Follows logs of workers, which do not end with a connection, until its Job has ended.

    Args:
      cluster: The cluster.
      name: The connection.
      logs: Shows the lines of its executors.
      lines: The number of last lines to begin with.

    Raises:
      SharedPathwaysError: The pods or the Job cannot be watched.
    """
    await first_of(logs.follow(lines), _wait_for_last_lines(cluster, name))
    await logs.read_rest()


async def _wait_for_last_lines(cluster: Cluster, name: str) -> None:
    await _wait_until_ended(cluster, name)
    await asyncio.sleep(timeouts.EXECUTORS_LAST_LINES.s)


async def _wait_until_ended(cluster: Cluster, name: str) -> None:
    path, params = collection("jobs", cluster.namespace), {"fieldSelector": f"metadata.name={name}"}
    exists = False
    async with contextlib.aclosing(watch(cluster.api, path, params=params)) as changes:
        async for change in changes:
            if change.kind == "SYNCED":
                if not exists:
                    return
            elif change.kind == "DELETED" or known_proxy(change.object).state == "ended":
                return
            else:
                exists = True
