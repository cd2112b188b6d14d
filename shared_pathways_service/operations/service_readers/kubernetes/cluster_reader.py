"""Reads a service in a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from shared_pathways_service.api.checks import Check
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.manifests.names import PROXY_SELECTOR
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.manager_link import link_to_manager
from shared_pathways_service.operations.service_readers.base import LogRequest, ShowLine
from shared_pathways_service.operations.service_readers.executor_logs import ExecutorLines
from shared_pathways_service.operations.service_readers.kubernetes import open_cluster
from shared_pathways_service.operations.service_readers.kubernetes.cluster_checks import (
    cluster_checks,
)
from shared_pathways_service.operations.service_readers.kubernetes.cluster_status import (
    read_cluster_status,
)
from shared_pathways_service.operations.service_readers.kubernetes.executor_following import (
    follow_until_proxy_ends,
)
from shared_pathways_service.operations.service_readers.kubernetes.pod_logs import (
    PodLogs,
    Select,
    pods_of,
)
from shared_pathways_service.operations.service_readers.kubernetes.reported_counters import (
    reported_counters,
)
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.shown_counters import (
    Counters,
)
from shared_pathways_service.runtime.settings import Settings

__all__ = ["ClusterReader"]


class ClusterReader:
    """A service in a cluster, as a `ServiceReader`."""

    has_counters = False
    starts_on_demand = False
    has_tunnel = True

    def __init__(
        self, where: ServiceChoice, settings: Settings, warn: Callable[[str], object]
    ) -> None:
        self._where = where
        self._settings = settings
        self._warn = warn

    def checks(
        self, request: SessionRequest, timeout_s: float, proxy_job_name: str | None = None
    ) -> list[Check]:
        """Checks the cluster and the service, as connect() does."""
        checks = asyncio.run(cluster_checks(self._where, request, timeout_s))
        if proxy_job_name is None:
            return checks
        # (JAX's plug-in, which only this check needs.)
        from shared_pathways_service.operations.service_readers.kubernetes.proxy_credentials import (  # noqa: E501, PLC0415
            proxy_credentials_check,
        )

        is_plaintext = request.proxy_options.use_insecure_credentials
        check = proxy_credentials_check(
            self._where, proxy_job_name, self._settings, timeout_s, is_plaintext=is_plaintext
        )
        return [*checks, asyncio.run(check)]

    def status(self, name: str | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Returns the output of ``sps status --json``."""
        read = read_cluster_status(
            self._where, self._settings, name, wait_s=wait_s, warn=self._warn
        )
        return asyncio.run(read)

    def counters(self, name: str | None) -> Counters:
        """Returns the counters that proxies last reported to the resource manager."""
        return asyncio.run(self._counters(name))

    async def _counters(self, name: str | None) -> Counters:
        async with self.manager() as manager, manager.translating():
            return await reported_counters(manager.stub, name)

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[Manager]:
        """Connects to the resource manager through the API server."""
        async with open_cluster.opened(self._where) as cluster:
            service = await cluster.service()
            if not service.is_ours:
                raise ServiceNotFound(
                    f"{service.name} runs {service.image}, whose resource manager reports nothing",
                    hint=f"`{cluster.sps('status', service=service.address)}` shows the state of "
                    "its pods",
                )
            async with link_to_manager(cluster, service, self._settings) as link:
                yield Manager(
                    stub=link.stub,
                    metadata=(),
                    address=service.address,
                    version=service.image,
                    link=link.unless_refused,
                )

    def proxies(self) -> AbstractAsyncContextManager[Cluster]:
        """Gives access to the Jobs of proxies."""
        return open_cluster.opened(self._where)

    def left_behind(self, names: set[str]) -> list[str]:
        """Returns Jobs and pods of connections."""
        return asyncio.run(self._left_behind(names))

    async def _left_behind(self, names: set[str]) -> list[str]:
        async with self.proxies() as cluster:
            return [
                f"{resource} {name}"
                # (Tenants may not list Secrets; a proxy's Secret is owned by its Job.)
                for resource in ("jobs", "pods")
                for found in await cluster.items(resource, PROXY_SELECTOR)
                if any((name := found["metadata"]["name"]).startswith(one) for one in names)
            ]

    def show_logs(self, wanted: LogRequest, show: ShowLine) -> None:
        """Shows logs of pods."""
        if wanted.component != "executor":
            asyncio.run(self._show_logs(wanted, show))
            return
        lines = ExecutorLines(wanted)
        is_known = lines.check_status(self.status)
        found = wanted if is_known else dataclasses.replace(wanted, follow=False)
        asyncio.run(self._show_logs(found, show, lines.select))
        lines.check_found()

    async def _show_logs(
        self, wanted: LogRequest, show: ShowLine, select: Select | None = None
    ) -> None:
        async with self.proxies() as cluster:
            pods = await pods_of(cluster, wanted.component, name=wanted.name)
            reader = PodLogs(cluster.api, cluster.namespace, pods, show, select)
            if not wanted.follow:
                await reader.read(wanted.lines)
            elif wanted.component == "executor":
                await follow_until_proxy_ends(cluster, wanted.name, reader, wanted.lines)
            else:
                await reader.follow(wanted.lines)
