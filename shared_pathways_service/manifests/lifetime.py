"""Computes the lifetime of a proxy's Job: its moving deadline, and its deletion."""

from __future__ import annotations

import math
from typing import Any, Final

from shared_pathways_service.constants import PROXY_DEADLINE_PUSH_S, PROXY_DEADLINE_S

__all__ = [
    "TTL_AFTER_FINISHED_S",
    "deadline_ahead_s",
    "deadline_patch",
    "deadline_s",
    "delete_body",
    "extension_interval_s",
    "keep_for_within",
]

#: Seconds for which an ended Job remains visible if it is not deleted.
TTL_AFTER_FINISHED_S: Final = 120


def keep_for_within(
    keep_for_s: float | None, *, default_s: float, limit_s: float | None
) -> float | None:
    """Returns for how long a proxy is kept: as requested, or None for the default.

    Args:
      keep_for_s: The request, which is within the limit; None: none.
      default_s: The default, which may be longer than the limit.
      limit_s: The operator's limit; None: none.
    """
    is_too_long = keep_for_s is None and limit_s is not None and default_s > limit_s
    return limit_s if is_too_long else keep_for_s


def deadline_ahead_s(keep_for_s: float | None, default_s: float) -> float:
    """Returns for how many seconds a Job outlives the last extension of its deadline.

    Args:
      keep_for_s: Seconds for which the proxy outlives the last sign of life; None: not requested.
      default_s: The result without a request.
    """
    # The last sign of life may have come just before the next extension.
    return default_s if keep_for_s is None else keep_for_s + PROXY_DEADLINE_PUSH_S


def extension_interval_s(ahead_s: float) -> float:
    """Returns the seconds between two extensions of a Job's deadline by `ahead_s`."""
    return min(ahead_s * PROXY_DEADLINE_PUSH_S / PROXY_DEADLINE_S, PROXY_DEADLINE_PUSH_S)


def deadline_s(
    age_s: float, max_lifetime_s: float | None = None, *, ahead_s: float = PROXY_DEADLINE_S
) -> int:
    """Returns the current ``activeDeadlineSeconds`` of a Job.

    Kubernetes counts them from the Job's start; whole seconds, at least 1.

    Args:
      age_s: Seconds since the Job's start; 0 for one to be created.
      max_lifetime_s: The limit of the deadline; None: no limit.
      ahead_s: Seconds between now and the deadline.
    """
    ahead = math.ceil(max(age_s, 0.0) + ahead_s)
    limit = math.inf if max_lifetime_s is None else max_lifetime_s
    return max(1, math.ceil(min(ahead, limit)))


def deadline_patch(deadline: int, uid: str) -> dict[str, Any]:
    """Returns the merge patch that extends the deadline of this Job only.

    The server answers ``Invalid`` for another Job of its name, which has another UID.
    """
    return {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": deadline}}


def delete_body(uid: str) -> dict[str, Any]:
    """Returns the body that deletes this object only, not another one of its name, and its pods.

    Without a policy a Job's deletion leaves its pods behind (batch/v1).
    """
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": uid},
        "propagationPolicy": "Background",
    }
