"""What the API server answers, as errors: translated here and nowhere else.

SharedPathwaysError
├── ApiError           the API server refused or failed a request
│   └── (AccessDenied  of the package's errors, for 401 and 403)
└── ApiUnreachable     there was no answer
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.paths import Target
from shared_pathways_service.kube.retry_rules import Failure, is_final
from shared_pathways_service.manifests.permissions import access_denied

__all__ = ["CONNECT_VERB", "ApiError", "ApiUnreachable", "error_of_answer"]

#: Of an `AccessDenied` that says that we are nobody here.
CONNECT_VERB: Final = "connect"


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
        return is_final(Failure(status=self.status, reason=self.reason))


class ApiUnreachable(SharedPathwaysError):  # noqa: N818 - reads as what happened
    """There was no answer from the API server, or it broke off.

    Attributes:
      server: Its URL.
      cause: What failed.
      is_final: Whether trying again is of no use, as with a certificate that is not the server's.
    """

    fields = ("server", "cause", "is_final")

    def __init__(
        self,
        message: str,
        *,
        server: str = "",
        cause: str = "",
        is_final: bool = False,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.server = server
        self.cause = cause
        self.is_final = is_final


#: The authorizer's words; an admission webhook's own may have a "cannot" in them as well.
_UNAUTHORIZED = re.compile(r'forbidden: User ".*" cannot \S+ (resource|path) ')


def error_of_answer(
    target: Target, status: int, body: Mapping[str, Any], *, retry_after_s: float | None = None
) -> SharedPathwaysError:
    """Returns the error that an answer stands for.

    Args:
      target: What was asked.
      status: Of HTTP, 400 or more.
      body: A ``Status`` of Kubernetes, or what else it was; empty when that was no JSON.
      retry_after_s: From the answer's header.
    """
    # (Google's APIs put theirs into one field.)
    told = body.get("error") or body
    said = str((told.get("message") if isinstance(told, Mapping) else told) or f"HTTP {status}")
    if status == 401:
        return AccessDenied(
            f"the API server does not take our credentials: {said}",
            verb=CONNECT_VERB,
            resource="cluster",
            hint="log in again",
        )
    if status == 403 and _is_for_lack_of_permission(body):
        denied = access_denied([target.permission], target.namespace)
        denied.message = f"{denied.message}: {said}"
        return denied
    return ApiError(
        f"cannot {target}: {said}",
        status=status,
        reason=str(body.get("reason") or ""),
        retry_after_s=retry_after_s,
    )


def _is_for_lack_of_permission(body: Mapping[str, Any]) -> bool:
    """Whether a 403 is the authorizer's; quotas and other admission forbid with the same reason.

    Only the text tells them apart.
    """
    return body.get("kind") != "Status" or bool(
        _UNAUTHORIZED.search(str(body.get("message") or ""))
    )
