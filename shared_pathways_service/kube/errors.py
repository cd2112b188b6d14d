"""Translates error answers of the API server into exceptions; the only place that does.

SharedPathwaysError
├── ApiError           the API server refused or failed a request
│   └── (AccessDenied  of the package's errors, for 401 and 403)
└── ApiUnreachable     there was no answer
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.paths import Target
from shared_pathways_service.kube.retry_rules import Failure, is_final
from shared_pathways_service.manifests.permissions import access_denied

__all__ = ["CONNECT_VERB", "ApiError", "ApiUnreachable", "error_of_answer"]

#: The verb in an `AccessDenied` for a user that the API server does not know.
CONNECT_VERB: Final = "connect"


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ApiError(SharedPathwaysError):
    """The API server refused or failed a request.

    Attributes:
      status: The HTTP status, e.g. 409.
      reason: Kubernetes' reason, e.g. ``AlreadyExists``; empty if the answer has none.
      retry_after_s: Seconds to wait, by the server's answer; None if it gave none.
      may_have_succeeded: Whether an earlier try of the request may have succeeded, without an
        answer.
    """

    status: int
    reason: str = ""
    retry_after_s: float | None = None
    may_have_succeeded: bool = False

    @property
    def is_final(self) -> bool:
        """Whether the same request would get the same answer."""
        return is_final(Failure(status=self.status, reason=self.reason))


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ApiUnreachable(SharedPathwaysError):  # noqa: N818 - named for the event
    """The API server did not answer, or the connection broke.

    Attributes:
      server: Its URL.
      is_final: Whether a retry is useless, e.g. because the certificate is not the server's.
    """

    server: str = ""
    cause: str = ""
    is_final: bool = False


#: The authorizer's text; the text of an admission webhook may contain "cannot" as well.
_UNAUTHORIZED = re.compile(r'forbidden: User ".*" cannot \S+ (resource|path) ')


def error_of_answer(
    target: Target, status: int, body: Mapping[str, Any], *, retry_after_s: float | None = None
) -> SharedPathwaysError:
    """Returns the error for an answer; `body` is a ``Status``, other JSON, or empty."""
    # (Google's APIs wrap their error in one field.)
    inner = body.get("error") or body
    text = inner.get("message") if isinstance(inner, Mapping) else inner
    said = "; ".join([text or f"HTTP {status}", *_budgets(body)])
    if status == 401:
        return AccessDenied(
            f"the API server does not take our credentials: {said}",
            verb=CONNECT_VERB,
            resource="cluster",
            hint="log in again",
        )
    if status == 403 and _is_from_authorizer(body):
        denied = access_denied([target.permission], target.namespace)
        denied.message = f"{denied.message}: {said}"
        return denied
    return ApiError(
        f"cannot {target}: {said}",
        status=status,
        reason=str(body.get("reason") or ""),
        retry_after_s=retry_after_s,
    )


def _budgets(body: Mapping[str, Any]) -> list[str]:
    """Returns which disruption budget refuses an eviction, and why; the message does not say."""
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [
        str(cause.get("message"))
        for cause in causes or ()
        if isinstance(cause, Mapping) and cause.get("reason") == "DisruptionBudget"
    ]


def _is_from_authorizer(body: Mapping[str, Any]) -> bool:
    """Whether a 403 is for missing permission: quotas and admission have the same reason."""
    text = str(body.get("message") or "")
    return body.get("kind") != "Status" or bool(_UNAUTHORIZED.search(text))
