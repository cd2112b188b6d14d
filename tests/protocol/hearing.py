"""A stub that tells when it has heard of a stream, for servers that wait for that."""

from __future__ import annotations

import asyncio
from typing import Any

from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc

__all__ = ["HearingStub"]


class HearingStub:
    """Sets an event of the server's when the initial metadata of a watch are there.

    Args:
      stub: Makes the calls.
      heard: Is set; the server's to clear.
    """

    def __init__(self, stub: pb_grpc.ResourceManagerAsyncStub, heard: asyncio.Event) -> None:
        self._stub, self._heard = stub, heard

    def Watch(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        """Watches."""
        call: Any = self._stub.Watch(*args, **kwargs)
        begun = call.initial_metadata

        async def initial_metadata() -> Any:
            found = await begun()
            self._heard.set()
            return found

        call.initial_metadata = initial_metadata
        return call
