"""Reads the public keys of an issuer, from a URL, a file, or where its discovery document says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import aiohttp

from shared_pathways_service.api.page_identity import PageIdentity, is_key_url
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.web.identity.assertions import PublicKey, usable_keys

__all__ = ["read_keys"]

#: Bytes of a document at most.
_LARGEST: Final = 1 << 20


async def read_keys(identity: PageIdentity) -> dict[str, PublicKey]:
    """Returns the keys of an issuer by their ids.

    Raises:
      ServiceNotReady: They cannot be read in time, or are not a JWK set.
    """
    where = identity.jwks or identity.issuer
    try:
        async with within(timeouts.PAGE_KEYS):
            return usable_keys(await _document_of(identity))
    except TimeoutError as error:
        why = f"no answer within {timeouts.PAGE_KEYS.s:g} s"
        raise _unreadable(where, why) from error
    except (OSError, ValueError, aiohttp.ClientError) as error:
        raise _unreadable(where, str(error)) from error


def _unreadable(where: str, why: str) -> ServiceNotReady:
    return ServiceNotReady(
        f"the keys that verify assertions cannot be read from {where}: {why}",
        hint="`sps ui --jwks` names another URL, or a file",
    )


async def _document_of(identity: PageIdentity) -> Any:
    if identity.jwks.startswith("/"):
        return json.loads(await asyncio.to_thread(Path(identity.jwks).read_bytes))
    async with aiohttp.ClientSession(trust_env=True) as client:
        return await _fetch(client, identity.jwks or await _discovered(client, identity))


async def _discovered(client: aiohttp.ClientSession, identity: PageIdentity) -> str:
    """Returns the URL of the keys in the issuer's document (OpenID Connect Discovery 1.0)."""
    found = await _fetch(client, f"{identity.issuer.rstrip('/')}/.well-known/openid-configuration")
    if not isinstance(found, dict) or found.get("issuer") != identity.issuer:
        raise ValueError("its discovery document is of another issuer")
    url = found.get("jwks_uri")
    if not isinstance(url, str) or not is_key_url(url):
        raise ValueError("its discovery document has no https URL jwks_uri")
    return url


async def _fetch(client: aiohttp.ClientSession, url: str) -> Any:
    # (Not where it leads to: that could be any host, and without TLS.)
    async with client.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise ValueError(f"{url} answers with {answer.status}")
        body = bytearray()
        async for part in answer.content.iter_any():
            body += part
            if len(body) > _LARGEST:
                raise ValueError(f"{url} has more than {_LARGEST} bytes")
        return json.loads(body)
