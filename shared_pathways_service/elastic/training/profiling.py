"""Handles active profiles: a slice event would damage one, and its end would hang."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import jax

from shared_pathways_service.elastic.waiting import Outcome, Waiters
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["refuse_profile", "stop_profile"]

_log = logging.getLogger(__name__)

#: The session of a profile in JAX's state: from 0.12 on, and before.
_SESSION_NAMES = ("session", "profile_session")
#: The end of a profile that still hangs: JAX allows no other end of it meanwhile.
_hanging: Outcome | None = None


def refuse_profile() -> None:
    """Raises InvalidRequestError if a profile is active."""
    if _is_active():
        raise InvalidRequestError(
            "jax.profiler", "a trace is active", "no active profile when elastic training begins"
        )


def stop_profile(timeout: float) -> None:
    """Ends a profile that an attempt started and did not end: its steps are incomplete.

    Ending it fetches data from the slices, of which one may hang.
    """
    global _hanging  # noqa: PLW0603 - as the profile is, of which a process has one
    if (_hanging is not None and not _hanging.wait(0)) or not _is_active():
        return
    with Waiters("sps-elastic-profile") as waiters:
        outcome = waiters.call("stop", jax.profiler.stop_trace)
        ended = outcome.wait(timeout)
    _hanging = None if ended else outcome
    if not ended or outcome.error is not None:
        reason = outcome.error if ended else f"no answer within {timeout:g} s"
        _log.warning("the profile of the attempt that failed could not be ended: %s", reason)


def _is_active() -> bool:
    """Known only to a private part of JAX, whose name depends on the release."""
    profiler: Any = importlib.import_module("jax._src.profiler")
    state = getattr(profiler, "_profile_state", None)
    return any(getattr(state, name, None) is not None for name in _SESSION_NAMES)
