from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from harness.processes import run_async
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol.auth import TokenInterceptor, bearer, read_token

TOKEN = "s3cret-token"
Metadata = tuple[tuple[str, str], ...]
REFUSED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def test_a_token_is_read_without_its_newline(token_file: Path) -> None:
    assert read_token(str(token_file)) == TOKEN


def test_without_a_file_there_is_no_token() -> None:
    assert read_token("") is None
    assert bearer(None) == ()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused(token_file: Path, mode: int) -> None:
    token_file.chmod(mode)
    with pytest.raises(InvalidRequestError, match="only its user can read") as caught:
        read_token(str(token_file))
    assert caught.value.field == "--token_file"
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words", b"two\nlines", b"\xff\xfe", b"x" * 5000]
)
def test_a_file_without_a_token_is_refused(token_file: Path, content: bytes) -> None:
    token_file.write_bytes(content)
    with pytest.raises(InvalidRequestError, match="one line of printable ASCII"):
        read_token(str(token_file))


def test_a_missing_file_is_refused_by_the_name_of_its_variable(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="No such file") as caught:
        read_token(str(tmp_path / "none"), field="SPS_TOKEN_FILE")
    assert caught.value.field == "SPS_TOKEN_FILE"


async def _answer(kind: str, service: str, metadata: Metadata) -> str:
    """Calls a server with a token; returns what came back: the code's name, and the details."""

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)
    server = grpc.aio.server(interceptors=[TokenInterceptor(TOKEN, open_methods=("/Open/Echo",))])
    for name in ("Closed", "Open", "OpenNot"):
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, {"Echo": handler}),)
        )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    call: Any
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        if kind == "unary":
            unary: Any = channel.unary_unary(f"/{service}/Echo")
            call = unary(b"hi", metadata=metadata)
        else:
            # Nothing is sent: a refusal must not wait for the first message.
            call = channel.stream_stream(f"/{service}/Echo")(metadata=metadata)
        code, details = await call.code(), await call.details()
    await server.stop(0)
    assert TOKEN not in details
    return str(code.name)


@pytest.mark.parametrize(
    ("kind", "service", "metadata", "expected"),
    [
        ("unary", "Closed", bearer(TOKEN), "OK"),
        ("unary", "Closed", (), REFUSED.name),
        ("stream", "Closed", (), REFUSED.name),
        ("unary", "Closed", bearer("s3cret-tokem"), REFUSED.name),
        ("stream", "Closed", bearer(TOKEN + "x"), REFUSED.name),
        ("unary", "Closed", (("authorization", TOKEN),), REFUSED.name),
        ("unary", "Closed", (("authorization", "bearer " + TOKEN),), REFUSED.name),
        ("unary", "Closed", (*bearer("wrong"), *bearer("wrong too")), REFUSED.name),
        ("unary", "Open", (), "OK"),
        ("unary", "OpenNot", (), REFUSED.name),
        ("unary", "Missing", (), REFUSED.name),
    ],
)
def test_only_calls_with_the_token_are_admitted(
    kind: str, service: str, metadata: Metadata, expected: str
) -> None:
    assert run_async(_answer(kind, service, metadata)) == expected
