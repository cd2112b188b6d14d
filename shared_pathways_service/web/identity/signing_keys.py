"""The public keys of an issuer, which change: read again for an unknown one, but not at will."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import jwt

from shared_pathways_service.errors import ServiceNotReady, SharedPathwaysError
from shared_pathways_service.web.identity.assertions import AssertionRefused

__all__ = ["SigningKeys"]

_log = logging.getLogger(__name__)

#: Seconds between two readings at least: everybody can send assertions with unknown keys.
_PAUSE_S: Final = 10.0
#: Seconds after which keys are read again in any case, as an issuer may have withdrawn one.
_AGE_S: Final = 3600.0


class SigningKeys:
    """The keys of an issuer.

    Args:
      read: Reads the keys, by their ids; raises SharedPathwaysError, and has a deadline.
      now: The clock, in seconds.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Mapping[str, jwt.PyJWK]]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._now = now
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_at = self._tried_at = -math.inf
        self._failure: SharedPathwaysError | None = None
        self._lock = asyncio.Lock()

    async def key(self, key_id: str) -> jwt.PyJWK:
        """Returns a key; reads the keys if it is unknown, or they are old.

        Raises:
          AssertionRefused: The issuer has no such key.
          ServiceNotReady: The keys cannot be read.
        """
        if self._is_current(key_id):
            return self._keys[key_id]
        async with self._lock:
            # (Another request may have read them meanwhile.)
            if not self._is_current(key_id) and self._now() - self._tried_at >= _PAUSE_S:
                await self._try_to_read()
        if (found := self._keys.get(key_id)) is not None:
            return found
        if self._failure is not None:
            raise ServiceNotReady(self._failure.message, hint=self._failure.hint)
        raise AssertionRefused("its key is not one of the issuer's")

    def _is_current(self, key_id: str) -> bool:
        return key_id in self._keys and self._now() - self._read_at < _AGE_S

    async def _try_to_read(self) -> None:
        self._tried_at = self._now()
        try:
            self._keys = await self._read()
        except SharedPathwaysError as error:
            # Old keys are kept: an issuer that does not answer must not lock everybody out.
            _log.warning("%s", error)
            self._failure = error
        else:
            self._read_at, self._failure = self._now(), None
