"""The public keys of an issuer, which change: read again for an unknown one, but not at will."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from shared_pathways_service.errors import ServiceNotReady, SharedPathwaysError
from shared_pathways_service.web.identity.assertions import AssertionRefused, PublicKey

__all__ = ["SigningKeys"]

_log = logging.getLogger(__name__)

#: Seconds between two readings at least: everybody can send assertions with unknown keys.
_PAUSE_S: Final = 10.0
#: Seconds after which keys are read again in any case, as an issuer may have withdrawn one.
_AGE_S: Final = 3600.0
#: Seconds after which keys that could not be read again are believed no longer.
_LONGEST_S: Final = 86_400.0


class SigningKeys:
    """The keys of an issuer.

    Known keys are there at once, while one task reads them again; `aclose` ends it.

    Args:
      read: Reads the keys, by their ids; raises SharedPathwaysError, and has a deadline.
      now: The clock, in seconds.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Mapping[str, PublicKey]]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._now = now
        self._keys: Mapping[str, PublicKey] = {}
        self._read_at = self._tried_at = -math.inf
        self._failure: SharedPathwaysError | None = None
        self._reading: asyncio.Task[None] | None = None

    async def key(self, key_id: str) -> PublicKey:
        """Returns a key; waits for a reading of the keys only if it is unknown.

        Raises:
          AssertionRefused: The issuer has no such key.
          ServiceNotReady: The keys cannot be read.
        """
        if self._age() >= _AGE_S or key_id not in self._keys:
            self._start_reading()
        found = self._known(key_id)
        if found is None and self._reading is not None:
            # (The reading is not this request's alone.)
            await asyncio.shield(self._reading)
            found = self._known(key_id)
        if found is not None:
            return found
        if self._failure is not None:
            raise ServiceNotReady(self._failure.message, hint=self._failure.hint)
        raise AssertionRefused("its key is not one of the issuer's")

    async def aclose(self) -> None:
        """Ends a reading."""
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    def _age(self) -> float:
        return self._now() - self._read_at

    def _known(self, key_id: str) -> PublicKey | None:
        return self._keys.get(key_id) if self._age() < _LONGEST_S else None

    def _start_reading(self) -> None:
        is_reading = self._reading is not None and not self._reading.done()
        if not is_reading and self._now() - self._tried_at >= _PAUSE_S:
            self._tried_at = self._now()
            self._reading = asyncio.create_task(self._try_to_read())

    async def _try_to_read(self) -> None:
        try:
            self._keys = await self._read()
        except SharedPathwaysError as error:
            # Old keys are kept: an issuer that does not answer must not lock everybody out.
            _log.warning("%s", error)
            self._failure = error
        else:
            self._read_at, self._failure = self._now(), None
