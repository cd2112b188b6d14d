"""A proxy whose gRPC credentials are not the client's is recognised, and no other is."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from harness.deadlines import deadline
from harness.processes import DEADLINE_S, run_async
from shared_pathways_service.agent.probing import probe
from shared_pathways_service.errors import CredentialsMismatch, ServiceNotReady, from_json
from shared_pathways_service.jax_client import ProxyTarget
from shared_pathways_service.jax_client.credentials import check_plaintext, wait_until_silent
from shared_pathways_service.jax_client.plugin.greeting import Greeting, greet, refuses_plaintext
from shared_pathways_service.jax_client.refusal import reason_of
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.testing.google_images.alts_handshake import serving_alts

#: Seconds: far below the 300 s of a connection's own time-out.
AT_ONCE_S = deadline(20.0)
VARIABLE = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"


def _version(_request: bytes, _context: grpc.ServicerContext) -> bytes:
    response = proxy_pb2.GrpcGetVersionResponse()
    response.version.protocol_version = ifrt.PROTOCOL_MAX
    response.version.ifrt_serdes_version_number = ifrt.SERDES_MAX
    return response.SerializeToString()


@contextlib.contextmanager
def serving_plaintext(sessions: list[str] | None = None) -> Iterator[str]:
    """Serves versions, and sessions that end at once; those that were begun are noted."""

    def session(_requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if sessions is not None:
            sessions.append(context.peer())
        return iter(())

    handler = grpc.method_handlers_generic_handler(
        ifrt.SERVICE,
        {
            "GetVersion": grpc.unary_unary_rpc_method_handler(_version),
            "IfrtSession": grpc.stream_stream_rpc_method_handler(session),
        },
    )
    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=[handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            assert server.stop(None).wait(DEADLINE_S)


@contextlib.contextmanager
def hanging_up() -> Iterator[str]:
    """A tunnel whose far end takes no connection: it accepts, and hangs up a moment later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(0.1)
                        with contextlib.suppress(TimeoutError):
                            while connection.recv(64):
                                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextlib.contextmanager
def through_a_lazy_tunnel(address: str) -> Iterator[str]:
    """A tunnel that passes on the end of the far side only when the near side writes again."""
    host, _, port = address.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    far = socket.create_connection((host, int(port)))
                    with near, far, contextlib.suppress(OSError):
                        while data := near.recv(64):
                            far.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def mismatch_of(address: str, *, plaintext: bool) -> CredentialsMismatch:
    """Probes, and returns the error without a traceback, which would keep gRPC's thread alive."""
    try:
        run_async(probe(address, plaintext))
    except CredentialsMismatch as error:
        copy = from_json(error.to_json())
    finally:
        gc.collect()
    assert isinstance(copy, CredentialsMismatch)
    return copy


def test_a_proxy_with_alts_is_a_mismatch_at_once() -> None:
    with serving_alts() as address:
        began = time.monotonic()
        error = mismatch_of(address, plaintext=True)
        assert time.monotonic() - began < AT_ONCE_S
    assert error.client == f"{VARIABLE}=true"
    assert VARIABLE in error.proxy
    assert "ALTS" in error.proxy
    assert f"{VARIABLE}=true" in error.hint
    assert "use_insecure_credentials:false" in error.hint
    assert address in error.message
    assert f"client: {error.client}; proxy: {error.proxy}" in error.message


def test_a_tunnel_that_hides_the_end_is_written_to() -> None:
    with serving_alts() as address, through_a_lazy_tunnel(address) as near:
        assert greet(near, AT_ONCE_S) is Greeting.HUNG_UP
        assert refuses_plaintext(near, AT_ONCE_S)


def test_a_plaintext_proxy_is_a_mismatch_for_a_client_with_alts() -> None:
    with serving_plaintext() as address:
        error = mismatch_of(address, plaintext=False)
    assert "ALTS" in error.client
    assert error.proxy == f"{VARIABLE}=true"
    assert "use_insecure_credentials:false" in error.hint


def test_both_sides_alike_are_ready() -> None:
    with serving_plaintext() as address:
        run_async(probe(address, True))
        check_plaintext(address, AT_ONCE_S)
        assert greet(address, AT_ONCE_S) is Greeting.HTTP2
    with serving_alts() as address:
        run_async(probe(address, False))
        wait_until_silent(address, 0.2)
        assert greet(address, 0.2, speaks=False) is Greeting.SILENT


def test_a_tunnel_whose_far_end_does_not_listen_is_no_mismatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # (On a busy machine it hangs up late.)
    monkeypatch.setenv("SPS_PATIENCE", "10")
    with hanging_up() as address:
        check_plaintext(address, AT_ONCE_S)
        with pytest.raises(ServiceNotReady, match="does not listen"):
            wait_until_silent(address, AT_ONCE_S)


def test_an_unreachable_address_is_no_mismatch() -> None:
    # Bound, so that the port stays ours, and without a listener.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        check_plaintext(address, 5.0)
        with pytest.raises(ServiceNotReady, match="no connection"):
            wait_until_silent(address, 5.0)


def test_a_probe_without_plaintext_sends_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wait_until_silent(f"127.0.0.1:{listener.getsockname()[1]}", 0.2)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b""


@pytest.mark.parametrize(("one_client", "begun"), [(True, 0), (False, 1)])
def test_a_proxy_for_one_client_is_not_tried_with_another_session(
    one_client: bool, begun: int
) -> None:
    sessions: list[str] = []
    with serving_plaintext(sessions) as address:
        assert reason_of(ProxyTarget(address=address, one_client=one_client), 30.0) is None
    assert len(sessions) == begun
