"""Asking a proxy until it answers."""

from __future__ import annotations

import asyncio

import tenacity

from shared_pathways_service.errors import ServiceNotReady

__all__ = ["probe"]

#: Seconds for one answer; for the first, after which it is asked whether the credentials fit.
_ANSWER_S = 5.0
_FIRST_ANSWER_S = 1.0
#: Seconds that a connection to a proxy which does not speak plaintext must stay open.
_SILENT_S = 2.0


async def probe(address: str, plaintext: bool = True) -> None:
    """Asks the proxy until it answers; the caller's to cancel.

    A plaintext proxy is asked for its version. One with ALTS cannot be asked from outside of Google
    Cloud: it counts as ready when it keeps a connection open on which nothing is sent.

    Args:
      address: ``unix:/path`` or ``127.0.0.1:port``.
      plaintext: Whether the proxy was started to speak plaintext.

    Raises:
      VersionSkew: It answers with versions that this package does not speak.
      CredentialsMismatch: It speaks plaintext and should not, or the other way round.
    """
    ask = _ask_for_version if plaintext else _wait_until_silent
    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(ServiceNotReady),
        wait=tenacity.wait_exponential(multiplier=0.05, max=2.0) + tenacity.wait_random(0, 0.05),
    ):
        with attempt:
            is_first = attempt.retry_state.attempt_number == 1
            await ask(address, _FIRST_ANSWER_S if is_first else _ANSWER_S)


async def _ask_for_version(address: str, answer_s: float) -> None:
    # Imported here: it brings gRPC along, which an agent with another home has no use for.
    from shared_pathways_service.jax_client.credentials import check_plaintext  # noqa: PLC0415
    from shared_pathways_service.protocol.ifrt.probe import probe_async  # noqa: PLC0415

    try:
        await probe_async(address, answer_s, wait=True)
    except ServiceNotReady:
        # gRPC does not tell a proxy that hangs up from one that is not there.
        await asyncio.to_thread(check_plaintext, address, _ANSWER_S)
        raise


async def _wait_until_silent(address: str, _answer_s: float) -> None:
    from shared_pathways_service.jax_client.credentials import wait_until_silent  # noqa: PLC0415

    await asyncio.to_thread(wait_until_silent, address, _SILENT_S)
