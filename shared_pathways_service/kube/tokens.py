"""A token that is fetched once for all who ask, and again before it expires."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["Token", "TokenSource", "static_token"]

_LOG = logging.getLogger(__name__)
#: A token is replaced this long before it expires, or when this share of its life is left,
#: whichever is later: a request that is on its way must not meet an expired one.
_MARGIN_S = 300.0
_MARGIN_SHARE = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token:
    """What a request shows.

    Attributes:
      header: Value of the ``Authorization`` header; empty: none is sent.
      expires_at: Seconds since the epoch, None when that is not known.
    """

    header: str = dataclasses.field(repr=False)
    expires_at: float | None = None


class TokenSource:
    """Gives a token that is still good.

    Args:
      fetch: Gets a new one; has a deadline of its own, raises `SharedPathwaysError`.
      now: Seconds since the epoch, by the clock that `Token.expires_at` is told by.
    """

    def __init__(
        self, fetch: Callable[[], Awaitable[Token]], *, now: Callable[[], float] = time.time
    ) -> None:
        self._fetch = fetch
        self._now = now
        self._token: Token | None = None
        self._renew_at = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def header(self) -> str:
        """Returns the value of the ``Authorization`` header; empty for none.

        Raises:
          SharedPathwaysError: There is none to be had, and the last one is no longer good.
        """
        async with self._one_at_a_time:
            if self._token is None or self._now() >= self._renew_at:
                await self._renew()
            assert self._token is not None
            return self._token.header

    def refused(self, header: str) -> None:
        """The server did not take it: the next one who asks gets a new one."""
        if self._token is not None and self._token.header == header:
            self._token = None

    async def _renew(self) -> None:
        asked_at = self._now()
        try:
            token = await self._fetch()
        except SharedPathwaysError as error:
            if self._token is None or self._has_expired(self._token):
                raise
            # There is time left for another try, by the next one who asks.
            _LOG.warning("cannot renew the token yet: %s", error)
            return
        self._token = token
        if token.expires_at is None:
            self._renew_at = float("inf")
        else:
            life = token.expires_at - asked_at
            self._renew_at = token.expires_at - min(_MARGIN_S, life * _MARGIN_SHARE)

    def _has_expired(self, token: Token) -> bool:
        return token.expires_at is not None and self._now() >= token.expires_at


def static_token(header: str = "") -> TokenSource:
    """Returns a source of one and the same header, which may be empty."""

    async def fetch() -> Token:
        return Token(header=header)

    return TokenSource(fetch)
