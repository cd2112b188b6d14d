"""How long a proxy's Job lives: its moving deadline, its deletion, and what is left of it."""

from __future__ import annotations

import math
from typing import Any, Final

from shared_pathways_service.constants import PROXY_DEADLINE_S

__all__ = ["TTL_AFTER_FINISHED_S", "deadline_patch", "deadline_s", "delete_body"]

#: Seconds that a Job which ended stays to be looked at, when nobody deletes it.
TTL_AFTER_FINISHED_S: Final = 120


def deadline_s(
    age_s: float, max_lifetime_s: float | None = None, *, ahead_s: float = PROXY_DEADLINE_S
) -> int:
    """Returns the ``activeDeadlineSeconds`` that a Job should have now.

    Kubernetes counts them from the Job's start; whole seconds, at least 1.

    Args:
      age_s: Seconds since the Job's start; 0 for one to be created.
      max_lifetime_s: Beyond which it is never moved; None: no limit.
      ahead_s: Seconds between now and the deadline.
    """
    ahead = math.ceil(max(age_s, 0.0) + ahead_s)
    limit = math.inf if max_lifetime_s is None else max_lifetime_s
    return max(1, math.ceil(min(ahead, limit)))


def deadline_patch(deadline: int, uid: str) -> dict[str, Any]:
    """Returns the merge patch that moves the deadline of this very Job, and of no other.

    Args:
      deadline: Seconds from the Job's start.
      uid: The Job's; the server answers ``Invalid`` for another of its name.
    """
    return {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": deadline}}


def delete_body(uid: str) -> dict[str, Any]:
    """Returns the body that deletes this very object, and its pods after it.

    Without a policy a Job's deletion leaves its pods behind (batch/v1).

    Args:
      uid: The object's; another of its name is left alone.
    """
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": uid},
        "propagationPolicy": "Background",
    }
