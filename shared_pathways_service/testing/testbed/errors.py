"""What the testbed raises."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["ApiRefused", "TestbedUnavailable", "TestbedError"]


class TestbedError(SharedPathwaysError):
    """The testbed did not come up, or cannot do what was asked of it."""

    __test__ = False  # the name is no test's


class TestbedUnavailable(TestbedError):  # noqa: N818 - the name says it
    """There can be no testbed here: the control plane is not built, and cannot be."""


class ApiRefused(TestbedError):  # noqa: N818 - the name says it
    """The API server answered with an error.

    Attributes:
      status: The HTTP status; 0: there was no answer.
      reason: Kubernetes' own word for it, e.g. ``NotFound``.
    """

    def __init__(self, what: str, *, status: int, reason: str, text: str) -> None:
        super().__init__(f"{what}: {status} {reason}: {text}")
        self.status = status
        self.reason = reason

    @classmethod
    def of_answer(cls, what: str, status: int, body: Any) -> ApiRefused:
        """Makes the error of what the server sent, be it Kubernetes' ``Status`` or not."""
        if isinstance(body, dict):
            reason, text = str(body.get("reason", "")), str(body.get("message", body))
        else:
            reason, text = "", str(body)[:500]
        return cls(what, status=status, reason=reason, text=text)
