"""Classifies failures of API requests as final or transient, and computes retry delays."""

from __future__ import annotations

import dataclasses
from typing import Final

__all__ = ["Failure", "is_final", "retry_delay_s"]

#: Retried only once, with a new token.
_UNAUTHORIZED: Final = 401
#: Too early, too many, or unavailable. A 500 is e.g. a change of etcd's leader.
_NOT_NOW: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONFLICT: Final = 409
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0
#: The longest ``Retry-After`` in seconds for which a request waits.
_LONGEST_ASKED_S: Final = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A request that failed.

    Attributes:
      status: The HTTP status; None: there was no answer, or only part of one.
      reason: Kubernetes' ``Status.reason``, e.g. ``AlreadyExists``; empty if it gave none.
      retry_after_s: The header ``Retry-After`` in seconds; None if it is missing.
      method: The HTTP method, in capitals.
    """

    status: int | None
    reason: str = ""
    retry_after_s: float | None = None
    method: str = "GET"


def is_final(failure: Failure, *, attempt: int = 0) -> bool:
    """Whether a retry would get the same answer.

    A create whose answer was lost may be retried: the answer is then AlreadyExists, and the
    object's session label identifies its owner. `attempt` is the number of tries before this one.
    """
    if failure.status is None or failure.status in _NOT_NOW:
        return False
    if failure.status == _UNAUTHORIZED:
        # Retry with a new token: the old one may have been revoked before its expiry.
        return attempt > 0
    # A concurrent write, which a retry resolves; a create's conflict is final.
    return not (
        failure.status == _CONFLICT and failure.reason == "Conflict" and failure.method == "PATCH"
    )


def retry_delay_s(failure: Failure, *, attempt: int, jitter: float, left_s: float) -> float | None:
    """Returns the seconds until the next try; None: give up.

    Args:
      failure: The last try's.
      attempt: The number of tries before that one.
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
        # Never earlier than requested, and spread over clients.
        delay = failure.retry_after_s + delay
    return delay if delay < left_s else None
