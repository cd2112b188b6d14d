"""Calls JAX first, and uses another way if its proxy client refuses."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["NOT_PJRT", "runtime_error", "says", "when_refused"]

#: The client's message for operations that it supports only on devices of its own process.
NOT_PJRT = "implemented for a PjRt-compatible backend only"


def when_refused(
    original: Callable[..., Any],
    texts: tuple[str, ...],
    instead: Callable[..., Any],
    *,
    where: Callable[[Any], bool] = lambda _first: True,
) -> Callable[..., Any]:
    """Returns a function that calls `instead` if `original` is refused with one of these texts.

    `where` decides by the first argument whether the replacement is used; otherwise the refusal
    is raised.
    """

    # (Methods that jaxlib defines have other attributes, of other types.)
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def tried(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except (runtime_error(), BufferError) as error:
            if not says(error, *texts) or not where(args[0]):
                raise
        return instead(*args, **kwargs)

    return tried


@functools.cache
def runtime_error() -> type[Exception]:
    """Returns the type of the client's errors."""
    error: type[Exception] = importlib.import_module("jax.errors").JaxRuntimeError
    return error


def says(error: Exception, *texts: str) -> bool:
    """Whether an error's text contains one of these."""
    return any(text in str(error) for text in texts)
