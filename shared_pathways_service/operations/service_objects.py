"""Objects beside a service's JobSet: they belong to it by a label, and go with it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from shared_pathways_service.errors import AccessDenied, InvalidRequestError, SharedPathwaysError
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests import names
from shared_pathways_service.operations.cluster_access import Cluster, Object

__all__ = ["NewObjects", "find_own", "undone_if_refused"]


class NewObjects:
    """The objects that one command has created beside a JobSet, so that it can delete them again.

    Another command may work on a service of the same name: what that one created is not deleted.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: Their resources, texts and UIDs.
        self._created: list[tuple[str, Object, str]] = []

    async def create(self, resource: str, body: Object) -> None:
        """Creates an object."""
        where = collection(resource, self._cluster.namespace)
        made = await self._cluster.api.request("POST", where, body=body)
        self._created.append((resource, body, made["metadata"]["uid"]))

    async def undo(self) -> None:
        """Deletes the objects, the last one first, as far as the cluster lets us."""
        while self._created:
            resource, body, uid = self._created.pop()
            path = item(resource, self._cluster.namespace, body["metadata"]["name"])
            with contextlib.suppress(SharedPathwaysError):
                await self._cluster.api.delete(path, uid=uid)

    async def undo_unless_used(self, service: str) -> None:
        """Deletes the objects; creates them again for a service that was created meanwhile.

        A concurrent command may have found them, and then have created the service.
        """
        deleted = list(self._created)
        await self.undo()
        if await self._cluster.api.find(item("jobsets", self._cluster.namespace, service)):
            for resource, body, _ in deleted:
                with contextlib.suppress(SharedPathwaysError):
                    await self.create(resource, body)


async def find_own(
    cluster: Cluster, resource: str, name: str, *, service: str, kind: str, instead: str
) -> Object | None:
    """Returns an object of a service; None: there is none.

    Args:
      cluster: The cluster.
      resource: The object's resource.
      name: The object's name.
      service: The service that it must belong to.
      kind: The object's kind, for errors.
      instead: The option by which the service does without it, for errors.

    Raises:
      InvalidRequestError: An object of that name belongs to something else.
    """
    found = await cluster.api.find(item(resource, cluster.namespace, name))
    if found is not None and names.labels_of(found).get(names.LABEL_SERVICE) != service:
        raise InvalidRequestError(
            "NAME",
            service,
            f"a name without another {kind} {name}",
            message=f"the {kind} {name} in {cluster.place} is not of the service {service}",
            hint=f"it has no label {names.LABEL_SERVICE}={service}; choose another name, or "
            f"{instead}",
        )
    return found


@contextlib.asynccontextmanager
async def undone_if_refused(
    cluster: Cluster, service: str, undo: Callable[[], Awaitable[object]]
) -> AsyncGenerator[None, None]:
    """Calls `undo` if the cluster refuses the service that the block creates."""
    try:
        yield
    except (AccessDenied, ApiError, InvalidRequestError):
        with contextlib.suppress(SharedPathwaysError):
            # (A service of this name may exist all the same, and use what would be undone.)
            if await cluster.api.find(item("jobsets", cluster.namespace, service)) is None:
                await undo()
        raise
