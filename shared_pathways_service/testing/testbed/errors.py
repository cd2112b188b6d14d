"""Errors of the testbed."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["ApiRefused", "TestbedUnavailable", "TestbedError"]


class TestbedError(SharedPathwaysError):
    """The testbed did not start, or cannot carry out a request."""

    __test__ = False  # pytest would collect it by its name


class TestbedUnavailable(TestbedError):  # noqa: N818 - the name says it
    """A testbed cannot run here: the control plane is not built, and cannot be built."""


class ApiRefused(TestbedError):  # noqa: N818 - the name says it
    """The API server answered with an error.

    Attributes:
      status: The HTTP status; 0: there was no answer.
      reason: Kubernetes' reason, e.g. ``NotFound``.
    """

    def __init__(self, what: str, *, status: int, reason: str, text: str) -> None:
        super().__init__(f"{what}: {status} {reason}: {text}")
        self.status = status
        self.reason = reason

    @classmethod
    def of_answer(cls, what: str, status: int, body: Any) -> ApiRefused:
        """Creates the error of an answer, which may be a Kubernetes ``Status``."""
        if isinstance(body, dict):
            reason, text = str(body.get("reason", "")), str(body.get("message", body))
        else:
            reason, text = "", str(body)[:500]
        return cls(what, status=status, reason=reason, text=text)
