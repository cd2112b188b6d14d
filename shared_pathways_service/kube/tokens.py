"""A cached token: one fetch serves all requests, and it is renewed before it expires."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.patience import timeouts

__all__ = ["Token", "TokenSource", "basic", "bearer", "file_token", "static_token"]

_LOG = logging.getLogger(__name__)
#: A token is replaced this long before it expires, or when this share of its lifetime is left,
#: whichever is later, so that it does not expire during a request.
_MARGIN_S = 300.0
_MARGIN_SHARE = 0.25
#: Seconds until the next try to renew a token.
_AGAIN_PAUSE_S = 30.0
#: Seconds until a file is read again; a kubelet renews a token long before it expires.
_READ_INTERVAL_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token:
    """The credentials of a request.

    Attributes:
      header: Value of the ``Authorization`` header; empty: the header is not sent.
      expires_at: Seconds since the epoch; None if not known.
      renew_at: When to fetch the next one, likewise; None: shortly before it expires.
    """

    header: str = dataclasses.field(repr=False)
    expires_at: float | None = None
    renew_at: float | None = None


class TokenSource:
    """Provides a valid token.

    Args:
      fetch: Gets a new token; has a deadline of its own, raises `SharedPathwaysError`.
      of: The issuer of the tokens, for messages.
      now: Seconds since the epoch, by the clock of `Token.expires_at`.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Token]],
        *,
        of: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.of = of
        #: Whether a token was fetched before.
        self.has_worked = False
        self._fetch = fetch
        self._now = now
        self._token: Token | None = None
        self._renew_at = 0.0
        self._renewal: asyncio.Task[Token] | None = None
        self._began = 0.0

    async def header(self) -> str:
        """Returns the value of the ``Authorization`` header; empty: send no header.

        Raises:
          SharedPathwaysError: No token could be fetched, and the last one has expired.
        """
        good = self._good()
        if good is not None and self._now() < self._renew_at:
            return good.header
        # In a task of its own: a caller may time out before the fetch is complete.
        renewal = self._begin_renewal()
        if good is not None:
            # Do not wait long while the last token is valid.
            patience_s = self._began + timeouts.TOKEN_RENEWAL.s - time.monotonic()
            if patience_s > 0:
                await asyncio.wait({renewal}, timeout=patience_s)
            if (good := self._good()) is not None:
                return good.header
        # (Use a new token even if it is expired by this machine's clock, which may be wrong.)
        return (await self._finish(renewal)).header

    @property
    def awaited_s(self) -> float | None:
        """Seconds that a fetch has lasted without a valid token; None: there is one."""
        if self._renewal is None or self._good() is not None:
            return None
        return time.monotonic() - self._began

    def refused(self, header: str) -> None:
        """Discards a token that the server refused; the next call fetches a new one."""
        if self._token is not None and self._token.header == header:
            self._token = None

    async def close(self) -> None:
        """Cancels a fetch in progress; a later call begins another."""
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
            # Another user of this source has closed it.
            renewal = self._begin_renewal()

    async def _renew(self) -> Token:
        requested_at = self._now()
        try:
            token = await self._fetch()
        except Exception:
            self._renew_at = requested_at + _AGAIN_PAUSE_S
            raise
        self._token = token
        self.has_worked = True
        self._renew_at = math.inf if token.renew_at is None else token.renew_at
        if token.renew_at is None and token.expires_at is not None:
            life_s = token.expires_at - requested_at
            self._renew_at = token.expires_at - min(_MARGIN_S, life_s * _MARGIN_SHARE)
        return token

    def _end_renewal(self, renewal: asyncio.Task[Token]) -> None:
        self._renewal = None
        if not renewal.cancelled() and (error := renewal.exception()):
            # Callers that waited got the error; perhaps there were none.
            level = logging.DEBUG if self._good() is None else logging.WARNING
            _LOG.log(level, "cannot renew the token yet: %s", error)


def static_token(header: str = "") -> TokenSource:
    """Returns a source with a constant header, which may be empty."""

    async def fetch() -> Token:
        return Token(header=header)

    return TokenSource(fetch)


def bearer(token: str) -> str:
    """Returns the header for a token.

    Raises:
      ValueError: The token has several lines, or other control characters.
    """
    if re.search(r"[\x00-\x1f\x7f]", token.strip()):
        raise ValueError("it has several lines, or control characters")
    return f"Bearer {token.strip()}"


def basic(user: str, password: str) -> str:
    """Returns the header for a user with a password."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def file_token(path: Path, header: str = "") -> TokenSource:
    """Returns a source of the token in a file that another process, e.g. a kubelet, renews.

    Args:
      path: The file.
      header: Sent until the file can be read. Later, the last token counts while it cannot.
    """
    last = header

    async def fetch() -> Token:
        nonlocal last
        try:
            last = _read(path)
        except AccessDenied as error:
            if not last:
                raise
            _LOG.warning("the last token counts: %s", error)
        return Token(header=last, expires_at=time.time() + _READ_INTERVAL_S)

    return TokenSource(fetch)


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
        header = bearer(text)
    except (OSError, ValueError) as error:
        raise _denied(f"cannot be read: {error}: {path}") from error
    if not text:
        raise _denied(f"is empty: {path}")
    return header


def _denied(what: str) -> AccessDenied:
    return AccessDenied(f"the token's file {what}", verb="connect", resource="cluster")
