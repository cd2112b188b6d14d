"""The way to the user's embedded service, for commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.homes.embedded.discovery import ServiceLink, find
from shared_pathways_service.runtime.settings import Settings

__all__ = ["embedded_link"]


@contextlib.asynccontextmanager
async def embedded_link(settings: Settings) -> AsyncIterator[ServiceLink]:
    """Opens it for the length of the block.

    Args:
      settings: Where the service is looked for.

    Raises:
      ServiceNotFound: There is none.
    """
    link = await find(settings)
    if link is None:
        raise ServiceNotFound(
            f"no service of yours runs in {settings.runtime_dir}",
            hint="`sps serve` starts one, and so does connect()",
        )
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(link.close)
        yield link
