"""The table of final errors covers all of gRPC's statuses; failures become our errors."""

from __future__ import annotations

import grpc
import pytest

from shared_pathways_service.errors import AccessDenied, ServiceNotReady
from shared_pathways_service.rmclient.failures import IS_FINAL, is_final, reason_of, translate


class _Failed(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "because"

    def trailing_metadata(self) -> tuple[()]:
        return ()


def test_each_status_but_ok_is_final_or_not() -> None:
    assert set(IS_FINAL) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


@pytest.mark.parametrize(
    ("code", "final"),
    [
        (grpc.StatusCode.UNAVAILABLE, False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False),
        (grpc.StatusCode.FAILED_PRECONDITION, True),
        (grpc.StatusCode.UNAUTHENTICATED, True),
    ],
)
def test_a_failure_is_classified_by_its_status(code: grpc.StatusCode, *, final: bool) -> None:
    assert is_final(_Failed(code)) is final
    assert reason_of(_Failed(code)) == f"{code.name}: because"


def test_a_failure_becomes_our_error_with_the_address() -> None:
    denied = translate(_Failed(grpc.StatusCode.UNAUTHENTICATED), "rm:1")
    assert isinstance(denied, AccessDenied)
    assert denied.message == "the resource manager at rm:1: UNAUTHENTICATED: because"
    away = translate(_Failed(grpc.StatusCode.UNAVAILABLE), "rm:1", service="x")
    assert isinstance(away, ServiceNotReady)
    assert away.message.startswith("x at rm:1")
