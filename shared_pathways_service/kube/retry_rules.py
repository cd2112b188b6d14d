"""Which answers of an API server are final, and after how long the others are asked for again."""

from __future__ import annotations

import dataclasses
from typing import Final

__all__ = ["Failure", "is_final", "retry_delay_s"]

#: No token is asked for more than once more.
_UNAUTHORIZED: Final = 401
#: Too early, too much, or not now. A 500 is etcd changing its leader, or the like.
_NOT_NOW: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONFLICT: Final = 409
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0
#: An API server that asks for more than this is not worth waiting for in one request.
_LONGEST_ASKED_S: Final = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A request that failed.

    Attributes:
      status: The HTTP status; None: there was no answer, or only part of one.
      reason: Kubernetes' ``Status.reason``, e.g. ``AlreadyExists``; empty when it gave none.
      retry_after_s: The header ``Retry-After`` in seconds; None when there was none.
      method: The HTTP method, in capitals.
    """

    status: int | None
    reason: str = ""
    retry_after_s: float | None = None
    method: str = "GET"


def is_final(failure: Failure, *, attempt: int = 0) -> bool:
    """Whether asking again would bring the same answer.

    A create whose answer was lost may be sent again: it is then answered with AlreadyExists, and
    the object's session label says whose it is.

    Args:
      failure: The answer, or the lack of one.
      attempt: How many tries there were before this one.
    """
    if failure.status is None or failure.status in _NOT_NOW:
        return False
    if failure.status == _UNAUTHORIZED:
        # Once more, with a token fetched anew: it may have been taken back before its end.
        return attempt > 0
    # Somebody else wrote at the same time; a create's conflict stays one.
    return not (
        failure.status == _CONFLICT and failure.reason == "Conflict" and failure.method == "PATCH"
    )


def retry_delay_s(failure: Failure, *, attempt: int, jitter: float, left_s: float) -> float | None:
    """Returns the seconds until the next try; None: give up.

    Args:
      failure: The last try's.
      attempt: How many tries there were before that one.
      jitter: From 0 to 1, drawn at random by the caller.
      left_s: Seconds until the caller's deadline.
    """
    if is_final(failure, attempt=attempt):
        return None
    if failure.status == _UNAUTHORIZED:
        return 0.0 if left_s > 0 else None
    delay = min(_FIRST_S * 2.0 ** min(attempt, 10), _LONGEST_S) * (0.5 + jitter / 2)
    if failure.retry_after_s is not None:
        if failure.retry_after_s > _LONGEST_ASKED_S:
            return None
        # Later than asked, never sooner, and not all at once.
        delay = failure.retry_after_s + delay
    return delay if delay < left_s else None
