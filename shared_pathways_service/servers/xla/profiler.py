"""Profiles this process with XLA's profiler, of which a process has one."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla.xla_internals import profiler_session

__all__ = ["Recording"]


class Recording:
    """A profile of this process, from now on until `stop`.

    Args:
      host_tracer_level: As in `jax.profiler.ProfileOptions`, like the next one.
      python_tracer_level: 0: no calls of Python functions.
    """

    def __init__(self, host_tracer_level: int, python_tracer_level: int) -> None:
        self._session: Any = profiler_session(host_tracer_level, python_tracer_level)

    def stop(self, most_bytes: int) -> bytes:
        """Ends the profile, and returns it as a serialized XSpace; later calls return no bytes.

        Raises:
          StatusError: RESOURCE_EXHAUSTED if it has more than `most_bytes`.
        """
        session, self._session = self._session, None
        if session is None:
            return b""
        raw: bytes = session.stop()
        if len(raw) > most_bytes:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"its profile has {len(raw)} bytes; its part of the limit (--trace_bytes) is "
                f"{most_bytes} bytes: profile for a shorter time",
            )
        return raw

    def drop(self) -> None:
        """Ends the profile, unless it has ended, and forgets it."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()
