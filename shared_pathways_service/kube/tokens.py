"""A token that is fetched once for all who ask, and again before it expires."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Awaitable, Callable

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
      of: Who gives them, for messages.
      now: Seconds since the epoch, by the clock that `Token.expires_at` is told by.

    Attributes:
      has_worked: Whether there was a token before.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Token]],
        *,
        of: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.of = of
        self.has_worked = False
        self._fetch = fetch
        self._now = now
        self._token: Token | None = None
        self._renew_at = 0.0
        self._renewal: asyncio.Task[Token] | None = None
        self._began = 0.0

    async def header(self) -> str:
        """Returns the value of the ``Authorization`` header; empty for none.

        Raises:
          SharedPathwaysError: There is none to be had, and the last one is no longer good.
        """
        good = self._good()
        if good is not None and self._now() < self._renew_at:
            return good.header
        # In a task of its own: who asks may be in more of a hurry than the fetch, and go.
        renewal = self._begin_renewal()
        if good is not None:
            # Nobody is held up for long while the last one is good.
            patience_s = self._began + _PATIENCE_S - time.monotonic()
            if patience_s > 0:
                await asyncio.wait({renewal}, timeout=patience_s)
            if (good := self._good()) is not None:
                return good.header
        # (A new one is used also if it has expired by this machine's clock, which may be wrong.)
        return (await self._finish(renewal)).header

    @property
    def awaited_s(self) -> float | None:
        """Seconds for which there has been no good token while one is fetched; None: there is."""
        if self._renewal is None or self._good() is not None:
            return None
        return time.monotonic() - self._began

    def refused(self, header: str) -> None:
        """The server did not take it: the next one who asks gets a new one."""
        if self._token is not None and self._token.header == header:
            self._token = None

    async def close(self) -> None:
        """Breaks off a fetch that is under way; who asks again later begins another."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait({self._renewal})

    def _good(self) -> Token | None:
        last = self._token
        if last is None or (last.expires_at is not None and self._now() >= last.expires_at):
            return None
        return last

    def _begin_renewal(self) -> asyncio.Task[Token]:
        if self._renewal is None:
            self._began = time.monotonic()
            self._renewal = asyncio.create_task(self._renew())
            self._renewal.add_done_callback(self._end_renewal)
        return self._renewal

    async def _finish(self, renewal: asyncio.Task[Token]) -> Token:
        while True:
            try:
                return await asyncio.shield(renewal)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not renewal.cancelled() or (task and task.cancelling()):
                    raise
            # Another one who shares this source has closed it.
            renewal = self._begin_renewal()

    async def _renew(self) -> Token:
        asked_at = self._now()
        try:
            token = await self._fetch()
        except Exception:
            self._renew_at = asked_at + _AGAIN_S
            raise
        self._token = token
        self.has_worked = True
        self._renew_at = math.inf
        if token.expires_at is not None:
            life_s = token.expires_at - asked_at
            self._renew_at = token.expires_at - min(_MARGIN_S, life_s * _MARGIN_SHARE)
        return token

    def _end_renewal(self, renewal: asyncio.Task[Token]) -> None:
        self._renewal = None
        if not renewal.cancelled() and (error := renewal.exception()):
            # Who had to wait for it is told; perhaps nobody had to.
            level = logging.DEBUG if self._good() is None else logging.WARNING
            _LOG.log(level, "cannot renew the token yet: %s", error)


def static_token(header: str = "") -> TokenSource:
    """Returns a source of one and the same header, which may be empty."""

    async def fetch() -> Token:
        return Token(header=header)

    return TokenSource(fetch)
