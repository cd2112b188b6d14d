"""Probes a proxy until it answers."""

from __future__ import annotations

import asyncio

import tenacity

from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.patience import timeouts

__all__ = ["probe"]


async def probe(address: str, plaintext: bool = True) -> None:
    """Probes the proxy until it answers, or the caller cancels.

    A plaintext proxy is asked for its version. A proxy with ALTS cannot answer outside Google
    Cloud: it counts as ready when it keeps a silent connection open.

    Raises:
      VersionSkew: It answers with versions that this package does not support.
      CredentialsMismatch: It uses plaintext and should not, or vice versa.
    """
    ask = _ask_for_version if plaintext else _wait_until_silent
    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(ServiceNotReady),
        wait=tenacity.wait_exponential(multiplier=0.05, max=2.0) + tenacity.wait_random(0, 0.05),
    ):
        with attempt:
            is_first = attempt.retry_state.attempt_number == 1
            await ask(address, timeouts.PROXY_FIRST_PROBE.s if is_first else timeouts.PROXY_PROBE.s)


async def _ask_for_version(address: str, answer_s: float) -> None:
    # Imported here because it imports gRPC, which an agent with another home does not need.
    from shared_pathways_service.jax_client.credentials import check_plaintext  # noqa: PLC0415
    from shared_pathways_service.protocol.ifrt.probe import probe_async  # noqa: PLC0415

    try:
        await probe_async(address, answer_s, wait=True)
    except ServiceNotReady:
        # gRPC does not distinguish a proxy that hangs up from a missing one.
        await asyncio.to_thread(check_plaintext, address, timeouts.PROXY_PROBE.s)
        raise


async def _wait_until_silent(address: str, _answer_s: float) -> None:
    from shared_pathways_service.jax_client.credentials import wait_until_silent  # noqa: PLC0415

    await asyncio.to_thread(wait_until_silent, address, timeouts.PROXY_SILENCE.s)
