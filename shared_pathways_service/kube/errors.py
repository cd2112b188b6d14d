"""What the API server answers, as errors: translated here and nowhere else.

SharedPathwaysError
├── ApiError           the API server refused or failed a request
│   └── (AccessDenied  of the package's errors, for 401 and 403)
└── ApiUnreachable     there was no answer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.paths import Target

__all__ = ["ApiError", "ApiUnreachable", "error_of_answer"]


class ApiError(SharedPathwaysError):
    """The API server's answer to a request that it did not carry out.

    Attributes:
      status: Of HTTP, e.g. 409.
      reason: Kubernetes' word for it, e.g. ``AlreadyExists``; empty when it gave none.
      retry_after_s: Seconds that it asked us to wait; None when it did not.
    """

    fields = ("status", "reason", "retry_after_s")

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str = "",
        retry_after_s: float | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def is_final(self) -> bool:
        """Whether the same request would meet the same answer."""
        return self.status not in {408, 429} and self.status < 500


class ApiUnreachable(SharedPathwaysError):  # noqa: N818 - reads as what happened
    """There was no answer from the API server, or it broke off.

    Attributes:
      server: Its URL.
      cause: What failed.
    """

    fields = ("server", "cause")

    def __init__(self, message: str, *, server: str = "", cause: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.server = server
        self.cause = cause


def error_of_answer(
    target: Target, status: int, body: Mapping[str, Any], *, retry_after_s: float | None = None
) -> SharedPathwaysError:
    """Returns the error that an answer stands for.

    Args:
      target: What was asked.
      status: Of HTTP, 400 or more.
      body: A ``Status`` of Kubernetes; empty when the answer was something else.
      retry_after_s: From the answer's header.
    """
    said = str(body.get("message") or f"HTTP {status}")
    if status in {401, 403}:
        return AccessDenied(
            f"not allowed to {target}: {said}",
            verb=target.verb,
            resource=target.resource_path,
            namespace=target.namespace,
            rule=target.rule,
        )
    return ApiError(
        f"cannot {target}: {said}",
        status=status,
        reason=str(body.get("reason") or ""),
        retry_after_s=retry_after_s,
    )
