"""Profiles this process with XLA's profiler, of which a process has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shared_pathways_service.servers.devices.run_names import run_name
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla.xla_internals import profiler_session, trace_event

__all__ = ["Recording", "naming_runs"]

_recordings = 0
_T = TypeVar("_T")


def naming_runs(execute: Callable[..., _T], devices: Mapping[int, int]) -> Callable[..., _T]:
    """Returns a function that runs a program, and names the run in a profile of this process.

    Args:
      execute: Runs the program.
      devices: The devices here of the program's client: ours, by XLA's numbers.
    """
    name = run_name(devices)

    def named(*arguments: object, **keywords: object) -> _T:
        if not _recordings:
            return execute(*arguments, **keywords)
        with trace_event(name):
            return execute(*arguments, **keywords)

    return named


class Recording:
    """A profile of this process, from now on until `stop`.

    Args:
      host_tracer_level: As in `jax.profiler.ProfileOptions`, like the next one.
      python_tracer_level: 0: no calls of Python functions.
    """

    def __init__(self, host_tracer_level: int, python_tracer_level: int) -> None:
        global _recordings  # noqa: PLW0603 - as the profile, of which a process has one
        self._session: Any = profiler_session(host_tracer_level, python_tracer_level)
        _recordings += 1

    def stop(self, most_bytes: int) -> bytes:
        """Ends the profile, and returns it as a serialized XSpace; later calls return no bytes.

        Raises:
          StatusError: RESOURCE_EXHAUSTED if it has more than `most_bytes`.
        """
        raw = self._stop()
        if len(raw) > most_bytes:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"its profile has {len(raw)} bytes; its part of the limit (--trace_bytes) is "
                f"{most_bytes} bytes: profile for a shorter time",
            )
        return raw

    def drop(self) -> None:
        """Ends the profile, unless it has ended, and forgets it."""
        self._stop()

    def _stop(self) -> bytes:
        global _recordings  # noqa: PLW0603 - see above
        session, self._session = self._session, None
        if session is None:
            return b""
        _recordings -= 1
        raw: bytes = session.stop()
        return raw
