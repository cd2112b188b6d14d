"""Attachments that fail, and their clean-up."""

from __future__ import annotations

import signal
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from shared_pathways_service.errors import InvalidRequestError, VersionSkew
from shared_pathways_service.jax_client import ProxyTarget
from shared_pathways_service.testing.google_images.alts_handshake import serving_alts
from tests.jax_client.conftest import (
    CREATING,
    DEADLINE_S,
    PRELUDE,
    TOKEN,
    Proxies,
    run_program,
    start_program,
)

FAILURES = """
import jax, jax.numpy as jnp, socket
from shared_pathways_service import errors
before = jax.device_put(jnp.arange(4.0), jax.devices()[0])
had = snapshot()

def fails(kind, timeout=deadline(30), **target):
    try:
        attach(ProxyTarget(**target), timeout=timeout)
    except kind as error:
        assert type(error) is kind, error
        caught = error
    else:
        raise AssertionError("attached")
    now = snapshot()
    for name, value in had.items():
        assert now[name] == value, (name, value, now[name])
    after = jax.device_put(jnp.ones(4), jax.devices()[0])
    assert (before + after).tolist() == [1, 2, 3, 4]
    wait_until("the end of attempts to connect", lambda: not connecting())
    return caught
"""


def test_a_failed_attachment_restores_everything(proxies: Proxies, own_directories: Path) -> None:
    done = run_program(
        PRELUDE
        + FAILURES
        + """
open_, guarded, token, directory = sys.argv[1:]

dead = fails(errors.TunnelError, address=f"unix:{directory}/nobody")
assert dead.pod == f"unix:{directory}/nobody" and dead.hint
fails(errors.TunnelError, address="127.0.0.1:1")

hole = socket.socket(socket.AF_UNIX)
hole.bind(f"{directory}/hole")
hole.listen()
fails(errors.TunnelError, timeout=1.5, address=f"unix:{directory}/hole")
hole.close()

missing = fails(errors.AccessDenied, address=guarded)
wrong = fails(errors.AccessDenied, address=guarded, token="another-tenants")
assert wrong.verb == "connect" and missing.message != wrong.message
assert "another-tenants" not in str(wrong) and token not in str(wrong)

secure = fails(errors.CredentialsMismatch, address=open_, insecure_credentials=False)
assert "use_insecure_credentials:false" in secure.hint, secure.to_json()

# After all that it still connects, to both.
attach(ProxyTarget(address=guarded, token=token), timeout=deadline(60)).detach()
attach(ProxyTarget(address=open_), timeout=deadline(60)).detach()
""",
        proxies[0].address,
        proxies[1].address,
        TOKEN,
        str(own_directories),
    )
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.parametrize("before", [None, "1", "true"])
def test_the_credentials_are_restored_without_a_client(before: str | None) -> None:
    with serving_alts() as address:
        run_program(
            PRELUDE
            + CREATING
            + """
from shared_pathways_service import errors
try:
    attach(ProxyTarget(address=sys.argv[1]), timeout=300)
except errors.CredentialsMismatch:
    pass
else:
    raise AssertionError("attached")
assert seen == {"true"}, seen
assert os.environ.get(variable) == before
wait_until("the end of attempts to connect", lambda: not connecting())
""",
            address,
            env={"IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": before},
        )


def test_a_proxy_that_refuses_plaintext_is_a_mismatch() -> None:
    with serving_alts() as address:
        run_program(
            PRELUDE
            + FAILURES
            + """
mismatch = fails(errors.CredentialsMismatch, timeout=300, address=sys.argv[1])
assert mismatch.client.endswith("=true") and "ALTS" in mismatch.proxy, mismatch.to_json()
""",
            address,
        )


def test_a_proxy_of_other_versions_is_a_version_skew(own_directories: Path) -> None:
    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "protocol 90 to 99 only")
        raise AssertionError("unreachable")

    handler = grpc.method_handlers_generic_handler(
        "xla.ifrt.proxy.GrpcIfrtService",
        {"GetVersion": grpc.unary_unary_rpc_method_handler(refuse)},
    )
    address = f"unix:{own_directories}/other"
    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=[handler])
        server.add_insecure_port(address)
        server.start()
        try:
            run_program(
                PRELUDE
                + FAILURES
                + """
skew = fails(errors.VersionSkew, address=sys.argv[1])
assert "90 to 99" in skew.service and "16 to 25" in skew.client, skew.to_json()
""",
                address,
            )
        finally:
            assert server.stop(None).wait(DEADLINE_S)


def test_an_interrupt_without_an_answer_restores_everything(own_directories: Path) -> None:
    source = (
        PRELUDE
        + FAILURES
        + """
hole = socket.socket(socket.AF_UNIX)
hole.bind(sys.argv[1])
hole.listen()

def accept():  # one connection to find out who answers, one or two of JAX's client
    hole.accept()
    hole.accept()
    print("connecting", flush=True)

threading.Thread(target=accept, daemon=True).start()
fails(KeyboardInterrupt, timeout=600, address=f"unix:{sys.argv[1]}")
print("put back", flush=True)
"""
    )
    with start_program(source, f"{own_directories}/hole") as process:
        assert process.stdout
        assert process.stdout.readline() == "connecting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, "put back\n"), err


def test_a_missing_private_part_of_jax_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from shared_pathways_service.jax_client import internals

    internals.check()
    monkeypatch.delattr(internals.xla_bridge, "_backend_factories")
    monkeypatch.delattr(internals.dispatch, "runtime_tokens")
    with pytest.raises(
        VersionSkew, match=r"xla_bridge\._backend_factories.*runtime_tokens"
    ) as info:
        internals.check()
    assert info.value.client.startswith("jax ")


@pytest.mark.parametrize("address", ["", "unix:", "unix:relative", "host", ":1", "host:", "host:x"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        ProxyTarget(address=address)
    assert info.value.field == "address"


def test_a_target_does_not_show_its_token() -> None:
    assert "secret" not in repr(ProxyTarget(address="unix:/x", token="secret"))
