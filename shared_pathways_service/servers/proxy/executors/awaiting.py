"""Waits for what was asked of executors and other processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from typing import Any, TypeVar

from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
)

__all__ = ["first_error", "result_of"]

_T = TypeVar("_T")


def result_of(asked: futures.Future[_T]) -> _T:
    """Waits for a result.

    Raises:
      StatusError: A copy of its error, so that the future does not refer to the frames of its user,
        which refer to the future.
    """
    error = asked.exception()
    if error is not None:
        raise from_exception(error).copy()
    return asked.result()


def first_error(asked: Sequence[futures.Future[Any]], timeout_s: float | None = None) -> None:
    """Waits until all have ended well, or one has failed, and raises its error.

    Args:
      asked: What was asked of executors.
      timeout_s: The seconds after which DEADLINE_EXCEEDED is raised; None: all waits end with the
        executors.
    """
    done, left = futures.wait(asked, timeout_s, return_when=futures.FIRST_EXCEPTION)
    for future in done:
        error = future.exception()
        if isinstance(error, StatusError):
            raise error.copy()
        if error is not None:
            raise error
    if left:
        raise StatusError(
            Code.DEADLINE_EXCEEDED,
            f"{len(left)} of {len(asked)} executors did not answer within {timeout_s:g} s",
        )
