"""Refuses profiles: a slice event would damage one, and its end would hang."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import jax

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["refuse_profile", "refusing_profiles"]

#: The session of a profile in JAX's state: from 0.12 on, and before.
_SESSION_NAMES = ("session", "profile_session")


def refuse_profile() -> None:
    """Raises InvalidRequestError if a profile is active."""
    if _is_active():
        raise InvalidRequestError(
            "jax.profiler", "a trace is active", "no active profile when elastic training begins"
        )


@contextlib.contextmanager
def refusing_profiles() -> Iterator[None]:
    """Has JAX refuse to begin a profile, for the length of a run.

    A profile has the data of slices: a slice event would leave it incomplete, and its end would
    wait for a slice that is lost. (pathwaysutils ends the profile at an event instead, where that
    may happen.)
    """
    profiler: Any = importlib.import_module("jax._src.profiler")
    # All ways lead through the class, where a release has it.
    places = [(jax.profiler, "start_trace"), (profiler, "start_trace")]
    if session := getattr(profiler, "ProfileSession", None):
        places.append((session, "start"))
    with contextlib.ExitStack() as undo:
        for holder, name in places:
            undo.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, _refuse)
        yield


def _refuse(*_args: object, **_kwargs: object) -> None:
    raise InvalidRequestError(
        "jax.profiler",
        "a trace in an elastic run",
        "no profile until elastic training has ended: a slice event would leave it incomplete, and "
        "its end would wait for a lost slice",
    )


def _is_active() -> bool:
    """Known only to a private part of JAX, whose name depends on the release."""
    profiler: Any = importlib.import_module("jax._src.profiler")
    state = getattr(profiler, "_profile_state", None)
    return any(getattr(state, name, None) is not None for name in _SESSION_NAMES)
