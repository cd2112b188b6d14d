"""Translates errors of the connection to an API server into the package's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shared_pathways_service.errors import PreflightError, TunnelError
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable

__all__ = ["after_creating", "before_creating"]

_HINT = "check the cluster's name, and that this machine reaches it; `sps doctor` helps"


@contextlib.contextmanager
def before_creating() -> Iterator[None]:
    """Translates errors before anything was created."""
    try:
        yield
    except (ApiError, ApiUnreachable) as error:
        raise PreflightError(error.message, hint=error.hint or _HINT) from error


@contextlib.contextmanager
def after_creating(name: str) -> Iterator[None]:
    """Translates errors after a proxy may have been created.

    Args:
      name: The proxy's name.
    """
    try:
        yield
    except (ApiError, ApiUnreachable) as error:
        cause = error.cause if isinstance(error, ApiUnreachable) else error.message
        raise TunnelError(
            f"the proxy {name} cannot be watched: {error.message}",
            cause=cause,
            hint=error.hint or _HINT,
        ) from error
