"""A token that is fetched once for all who ask, and again before it expires."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Awaitable, Callable

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["Token", "TokenSource", "static_token"]

_LOG = logging.getLogger(__name__)
#: A token is replaced this long before it expires, or when this share of its life is left,
#: whichever is later: a request that is on its way must not meet an expired one.
_MARGIN_S = 300.0
_MARGIN_SHARE = 0.25
#: Seconds that a renewal is waited for while the last token is good, and until the next try.
_PATIENCE_S = 5.0
_AGAIN_S = 30.0


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

    Attributes:
      has_worked: Whether there was a token before.
    """

    def __init__(
        self, fetch: Callable[[], Awaitable[Token]], *, now: Callable[[], float] = time.time
    ) -> None:
        self._fetch = fetch
        self._now = now
        self._token: Token | None = None
        self._renew_at = 0.0
        self._renewal: asyncio.Task[None] | None = None
        self.has_worked = False

    async def header(self) -> str:
        """Returns the value of the ``Authorization`` header; empty for none.

        Raises:
          SharedPathwaysError: There is none to be had, and the last one is no longer good.
        """
        while self._token is None or self._now() >= self._renew_at:
            # A task of its own: who asked may be in more of a hurry than the fetch, and go.
            if self._renewal is None:
                self._renewal = asyncio.create_task(self._renew())
                self._renewal.add_done_callback(self._renewed)
            if (last := self._good()) is None:
                await self._finish(self._renewal)
                continue
            # Nobody is held up for long while the last one is good.
            done, _ = await asyncio.wait({self._renewal}, timeout=_PATIENCE_S)
            if not done:
                return last.header
        return self._token.header

    async def close(self) -> None:
        """Breaks off a fetch that is under way; who asks again later begins another."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait({self._renewal})

    def refused(self, header: str) -> None:
        """The server did not take it: the next one who asks gets a new one."""
        if self._token is not None and self._token.header == header:
            self._token = None

    def _good(self) -> Token | None:
        last = self._token
        if last is None or (last.expires_at is not None and self._now() >= last.expires_at):
            return None
        return last

    async def _finish(self, renewal: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(renewal)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not renewal.cancelled() or (task and task.cancelling()):
                raise
            # Another one who shares this source has closed it; it goes on for us.

    async def _renew(self) -> None:
        asked_at = self._now()
        try:
            token = await self._fetch()
        except SharedPathwaysError as error:
            if (last := self._good()) is None:
                raise
            _LOG.warning("cannot renew the token yet: %s", error)
            self._renew_at = min(asked_at + _AGAIN_S, last.expires_at or math.inf)
            return
        self._token = token
        self.has_worked = True
        self._renew_at = math.inf
        if token.expires_at is not None:
            life_s = token.expires_at - asked_at
            self._renew_at = token.expires_at - min(_MARGIN_S, life_s * _MARGIN_SHARE)

    def _renewed(self, renewal: asyncio.Task[None]) -> None:
        self._renewal = None
        if not renewal.cancelled() and (error := renewal.exception()):
            # (Who waited for it was told; perhaps nobody did.)
            _LOG.debug("no token: %s", error)


def static_token(header: str = "") -> TokenSource:
    """Returns a source of one and the same header, which may be empty."""

    async def fetch() -> Token:
        return Token(header=header)

    return TokenSource(fetch)
