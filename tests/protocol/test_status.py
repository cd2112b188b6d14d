from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from harness.processes import run_async
from shared_pathways_service import errors
from shared_pathways_service.constants import PROTOCOL_MAX
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.protocol.grpc_errors import (
    abort,
    code_of,
    error_of,
)
from shared_pathways_service.protocol.versions import negotiate

ERRORS = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]

#: As absl's status.h numbers them, which JAX's protocols carry.
ABSL = """OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS
    PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED
    INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"""


def _make(cls: type[SharedPathwaysError], message: str = "what happened") -> SharedPathwaysError:
    if issubclass(cls, errors.InvalidRequestError):
        return cls("field", "value", "expected", message=message, hint="do better")
    return cls(message, hint="do better")


def _received(
    error: SharedPathwaysError, code: grpc.StatusCode | None = None
) -> SharedPathwaysError:
    """Returns what a client makes of an error that a real server aborts with."""

    async def fail(_request: bytes, context: Any) -> bytes:
        await abort(context, error, code)

    async def call() -> grpc.RpcError:
        server = grpc.aio.server()
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(fail)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("S", {"M": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: Any = channel.unary_unary("/S/M")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(b"")
        await server.stop(0)
        return caught.value.with_traceback(None)

    failed = run_async(call())
    assert failed.code() is (code or code_of(error))
    return error_of(failed, service="server", address="here")


@pytest.mark.parametrize("cls", ERRORS)
def test_an_error_arrives_as_it_left(cls: type[SharedPathwaysError]) -> None:
    error = _make(cls)
    received = _received(error)
    assert type(received) is cls
    assert received.to_json() == error.to_json()


def test_another_code_may_be_sent_with_an_error() -> None:
    received = _received(SharedPathwaysError("taken"), grpc.StatusCode.ALREADY_EXISTS)
    assert received.message == "taken"


def test_an_error_too_long_for_a_header_arrives_as_code_and_text() -> None:
    received = _received(errors.SlicesTaken("taken", holders=["ada@laptop"] * 1000))
    assert isinstance(received, errors.CapacityError)
    assert received.message == "server at here: RESOURCE_EXHAUSTED: taken"


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_a_status_of_somebody_else_becomes_an_error(code: grpc.StatusCode) -> None:
    failed = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "details")
    error = error_of(failed, service="server", address="here")
    assert error.message == f"server at here: {code.name}: details"
    # Said again to the next in line, the code is of the same kind.
    assert isinstance(error_of(_with(code_of(error)), service="s", address=""), type(error))


def _with(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "")


def test_a_trailer_of_another_form_is_passed_over() -> None:
    trailer = grpc.aio.Metadata(("sps-error-bin", b"[1, 2]"))
    code = grpc.StatusCode.NOT_FOUND
    failed = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailer, "details")
    assert isinstance(error_of(failed, service="s", address=""), errors.ServiceNotFound)


def test_the_highest_common_version_is_spoken() -> None:
    assert negotiate(1, 1) == 1
    assert negotiate(1, 7) == PROTOCOL_MAX


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 3), (3, 2)])
def test_a_range_that_is_none_is_refused(low: int, high: int) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        negotiate(low, high)
    assert caught.value.field == "versions"


def test_no_common_version_names_both_ranges() -> None:
    with pytest.raises(errors.VersionSkew, match="speaks 3 to 5, the service 1 to 2") as caught:
        negotiate(3, 5)
    assert (caught.value.client, caught.value.service) == ("3 to 5", "1 to 2")


def test_codes_have_the_numbers_of_absl() -> None:
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    assert [names[number] for number in range(17)] == ABSL.split()
