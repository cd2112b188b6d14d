"""Calls JAX first, and does in another way what its proxy client refused.

Like the plug-in the file needs the standard library and JAX only: both are copied together.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["NOT_PJRT", "runtime_error", "says", "when_refused"]

#: What the client says of what it does for devices of its own process only.
NOT_PJRT = "implemented for a PjRt-compatible backend only"


def when_refused(
    original: Callable[..., Any],
    texts: tuple[str, ...],
    instead: Callable[..., Any],
    *,
    where: Callable[[Any], bool] = lambda _first: True,
) -> Callable[..., Any]:
    """Returns a function that is tried as it is, and replaced only where it was refused.

    Args:
      original: Of JAX.
      texts: The refusal holds one of them.
      instead: Called with the same arguments.
      where: Whether it is to be called, by the first argument; the refusal is raised otherwise.
    """

    # (Methods that jaxlib defines have other attributes, which are not of the right type.)
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
    """Whether an error's text holds one of these."""
    return any(text in str(error) for text in texts)
