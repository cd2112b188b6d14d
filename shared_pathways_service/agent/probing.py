"""Asking a proxy until it answers."""

from __future__ import annotations

import tenacity

from shared_pathways_service.errors import ServiceNotReady

__all__ = ["probe"]

#: Seconds for one answer.
_ANSWER_S = 5.0


async def probe(address: str) -> None:
    """Asks the proxy for its version until it answers; the caller's to cancel.

    Args:
      address: ``unix:/path`` or ``127.0.0.1:port``.

    Raises:
      VersionSkew: It answers with versions that this package does not speak.
    """
    # Imported here: it brings gRPC along, which an agent with another home has no use for.
    from shared_pathways_service.protocol.probe import probe_async  # noqa: PLC0415

    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(ServiceNotReady),
        wait=tenacity.wait_exponential(multiplier=0.05, max=2.0) + tenacity.wait_random(0, 0.05),
    ):
        with attempt:
            await probe_async(address, _ANSWER_S, wait=True)
