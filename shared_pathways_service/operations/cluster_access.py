"""Reads and deletes objects in a namespace of a cluster, for operations on services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy, is_proxy, known_proxy
from shared_pathways_service.cluster_state.services import Service, find_service
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests.names import LABEL_USER, PROXY_SELECTOR, label_value

__all__ = ["Cluster", "Object"]

Object = Mapping[str, Any]


class Cluster:
    """A namespace of a cluster.

    Args:
      api: The API server.
      namespace: The namespace of all objects.
      address: The address of the service that `service` finds; empty: the only service.
    """

    def __init__(self, api: KubeApi, namespace: str, address: str = "") -> None:
        self.api = api
        self.namespace = namespace
        self._address = address

    @property
    def place(self) -> str:
        """The namespace and its cluster, for messages."""
        return f"namespace {self.namespace} of {self.api.access.name or 'the cluster'}"

    @property
    def server_time(self) -> float:
        """Seconds since 1970 by the API server's clock, as of its last answer."""
        return self.api.server_time

    def sps(self, *words: str, service: str = "") -> str:
        """Returns a command of `sps` for a message: in any shell it acts on this namespace."""
        return self.api.access.commands.sps(*words, namespace=self.namespace, service=service)

    def kubectl(self, *words: str) -> str:
        """Returns a command of `kubectl` for a message, as `sps` does."""
        return self.api.access.commands.kubectl(*words, namespace=self.namespace)

    async def items(self, resource: str, selector: str = "") -> list[Object]:
        """Lists objects."""
        params = {"labelSelector": selector} if selector else {}
        found = await self.api.get(collection(resource, self.namespace), params=params)
        return found.get("items") or []

    async def proxies(self, user: str = "") -> list[KnownProxy]:
        """Returns a user's or all proxies that this package created, oldest first."""
        selector = f"{PROXY_SELECTOR},{LABEL_USER}={label_value(user)}" if user else PROXY_SELECTOR
        found = [known_proxy(job) for job in await self.items("jobs", selector)]
        return sorted(found, key=lambda proxy: proxy.since)

    async def proxy(self, name: str) -> KnownProxy:
        """Returns one proxy.

        Raises:
          ServiceNotFound: There is no Job of that name, or it is not a proxy.
        """
        job = await self.api.find(item("jobs", self.namespace, name))
        if job is None:
            raise ServiceNotFound(
                f"there is no connection {name} in {self.place}",
                hint=f"`{self.sps('list', '--all', service=self._address)}` shows the connections",
            )
        if not is_proxy(job):
            raise ServiceNotFound(f"the Job {name} in {self.place} is not a proxy of this package")
        return known_proxy(job)

    async def delete(self, proxy: KnownProxy) -> bool:
        """Deletes this proxy, its pod and its Secret; returns False if it was already deleted."""
        return await self.api.delete(item("jobs", self.namespace, proxy.name), uid=proxy.uid)

    async def service(self, address: str = "") -> Service:
        """Returns the service at an address, the named service, or the only one."""
        jobsets = await self.items("jobsets")
        return find_service(jobsets, address or self._address, namespace=self.namespace)
