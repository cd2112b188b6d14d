"""Errors of the way to an API server, as the package's own: a program can tell those apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shared_pathways_service.errors import PreflightError, TunnelError
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable

__all__ = ["after_creating", "before_creating"]

_HINT = "see whether the cluster is the right one and this machine reaches it; `sps doctor` looks"


@contextlib.contextmanager
def before_creating() -> Iterator[None]:
    """Translates what goes wrong while there is nothing yet."""
    try:
        yield
    except (ApiError, ApiUnreachable) as error:
        raise PreflightError(error.message, hint=error.hint or _HINT) from error


@contextlib.contextmanager
def after_creating(name: str) -> Iterator[None]:
    """Translates what goes wrong once there may be a proxy.

    Args:
      name: Its name.
    """
    try:
        yield
    except (ApiError, ApiUnreachable) as error:
        cause = error.cause if isinstance(error, ApiUnreachable) else error.message
        raise TunnelError(
            f"the proxy {name} cannot be seen to: {error.message}",
            cause=cause,
            hint=error.hint or _HINT,
        ) from error
