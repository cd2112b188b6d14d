"""Connects commands to the user's embedded service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.homes.embedded.discovery import ServiceLink, find
from shared_pathways_service.runtime.settings import Settings

__all__ = ["embedded_link"]


@contextlib.asynccontextmanager
async def embedded_link(settings: Settings) -> AsyncIterator[ServiceLink]:
    """Connects to the user's embedded service for the length of the block.

    Args:
      settings: The directories in which to look for the service.

    Raises:
      ServiceNotFound: No service runs.
    """
    link = await find(settings)
    if link is None:
        raise ServiceNotFound(
            f"you have no running service in {settings.runtime_dir}",
            hint="`sps serve` or connect() starts one",
        )
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(link.close)
        yield link
