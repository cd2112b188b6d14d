"""A client of an API server that there is not: a test's own class answers in its place."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.tokens import static_token

__all__ = ["NowhereApi"]


class NowhereApi(KubeApi):
    """Override what the code under test calls: requests, and `chunks` for streams."""

    def __init__(self) -> None:
        super().__init__(ClusterAccess(server="http://nowhere", tls=None, tokens=static_token()))

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        within_s: float | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self.chunks(path)

    def chunks(self, path: str) -> AsyncIterator[bytes]:
        """Returns the parts of a stream, or raises why it is refused."""
        raise NotImplementedError(path)
