"""Refuses profiles: a slice event would damage one, and its end would hang."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["refuse_profile", "refusing_profiles"]

#: The session of a profile in JAX's state: from 0.12 on, and before.
_SESSION_NAMES = ("session", "profile_session")
#: Marks a function that asks for runs; `functools.wraps` passes it on.
_GUARDED = "_sps_asks_for_runs"


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
    global _runs  # noqa: PLW0603 - as JAX's profiler, of which a process has one
    with _lock:
        _guard_all()
        _runs += 1
    try:
        yield
    finally:
        with _lock:
            _runs -= 1


#: The elastic runs of this process, which may overlap.
_runs = 0
_lock = threading.Lock()


def _guard_all() -> None:
    """Has JAX's functions ask for runs, permanently.

    (Runs that replaced and restored them would restore each other's, if they overlap; and what
    others wrap meanwhile would stay.)
    """
    profiler: Any = importlib.import_module("jax._src.profiler")
    # All ways lead through the class, where a release has it.
    places = [(jax.profiler, "start_trace"), (profiler, "start_trace")]
    if session := getattr(profiler, "ProfileSession", None):
        places.append((session, "start"))
    for holder, name in places:
        found = getattr(holder, name)
        if not hasattr(found, _GUARDED):  # (A wrapper of ours has this, too.)
            setattr(holder, name, _guarded(found))


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def begin(*args: Any, **kwargs: Any) -> Any:
        if _runs:
            raise InvalidRequestError(
                "jax.profiler",
                "a trace in an elastic run",
                "no profile until elastic training has ended: a slice event would leave it "
                "incomplete, and its end would wait for a lost slice",
            )
        return original(*args, **kwargs)

    setattr(begin, _GUARDED, True)
    return begin


def _is_active() -> bool:
    """Known only to a private part of JAX, whose name depends on the release."""
    profiler: Any = importlib.import_module("jax._src.profiler")
    state = getattr(profiler, "_profile_state", None)
    return any(getattr(state, name, None) is not None for name in _SESSION_NAMES)
