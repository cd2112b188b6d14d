"""Requests beyond a limit fail with the need, the limit and the usage; the session lives on."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import threading
from typing import Any

import grpc
import numpy as np
import pytest

from harness.processes import DEADLINE_S, REPOSITORY
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.limits import default_host_memory
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.proxy.limits import Limits
from tests.servers.proxy import transports
from tests.servers.proxy.conftest import KIND, MakeClient, MakeProxy, wait_until
from tests.servers.proxy.session.limited import EXHAUSTED, FOUR, limited, live, make_errors

transport = transports.both


# ---- flags


def test_each_limit_is_a_flag() -> None:
    flags = [
        f"--virtual_slices={KIND}",
        "--host_memory_limit_bytes=1",
        "--max_handles=2",
        "--max_requests=3",
        "--max_message_bytes=4",
        "--max_sessions=5",
        "--trace_s=6",
        "--trace_bytes=7",
    ]
    assert parse_flags(ProxyServerOptions, flags, {}).limits() == Limits(
        host_memory_bytes=1,
        handles=2,
        requests=3,
        message_bytes=4,
        sessions=5,
        trace_s=6,
        trace_bytes=7,
    )
    assert parse_flags(ProxyServerOptions, flags[:1], {}).limits() == Limits(
        host_memory_bytes=default_host_memory()
    )
    for wrong in ("--max_handles=0", "--max_sessions=-1", "--host_memory_limit_bytes=x"):
        with pytest.raises(InvalidRequestError) as raised:
            parse_flags(ProxyServerOptions, [flags[0], wrong], {})
        assert raised.value.field == wrong.split("=", maxsplit=1)[0]


def test_each_limit_is_documented() -> None:
    text = (REPOSITORY / "docs" / "isolation.md").read_text()
    for field in dataclasses.fields(ProxyServerOptions):
        if field.name == "max_lifetime_s":
            continue  # told to the resource manager, which sees to it
        if field.name.startswith(("max_", "trace_")) or field.name.endswith("memory_limit_bytes"):
            line = f"| `--{field.name}` | `{field.metadata['flag'].env[0]}` | "
            assert line in text
            default = text.split(line)[1].split(" |")[0]
            usual = {str(n << 20): f"{n} MiB" for n in (64, 256)} | {
                "None": "half of",
                "0": "0: none",
            }
            expected = usual.get(str(field.default)) or f"{field.default:,}"
            assert default.startswith(expected)


# ---- handles


def test_handles_beyond_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    client = connect(limited(make_proxy, handles=10).address)
    program = client.compile(DOUBLE, [0])
    array = client.put(FOUR, single(0))
    held = client.call("make_error_arrays", **make_errors(7)).array_handles
    execute = {"loaded_executable_handle": program, "args_handles": [array]}
    with pytest.raises(Failed) as raised:
        client.call("loaded_executable_execute", result_array_handle=[900], **execute)
    assert raised.value.code == EXHAUSTED
    assert raised.value.message == (
        "a loaded_executable_execute needs handles; the limit (--max_handles) is 10 per session, "
        "of which 8 arrays, 1 programs, 0 executions and 1 futures are held, and 0 for programs "
        "that are being compiled"
    )
    # The error is behind the handle that the request named.
    with pytest.raises(Failed, match="--max_handles"):
        client.ready(900)
    with pytest.raises(Failed, match="a compile needs handles"):
        client.compile(DOUBLE, [1])
    # What is there can be used and dropped, and then there is room again.
    np.testing.assert_array_equal(client.fetch(array), FOUR)
    client.call("destruct_array", array_handle=[*held, 900])
    (doubled,) = client.execute(program, [array])
    np.testing.assert_array_equal(client.fetch(doubled), 2 * FOUR)


def test_continuing_beyond_the_limit_gains_nothing(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = limited(make_proxy, handles=10)
    client = connect(proxy.address)
    (session,) = proxy.service.sessions
    for start in range(1, 200, 4):
        with_errors = make_errors(4) | {"array_handles": range(start, start + 4)}
        pending = client.begin("make_error_arrays", **with_errors)
        if start > 10:
            with pytest.raises(Failed, match="--max_handles"):
                pending.result()
    client.call("destruct_array", array_handle=range(1, 20))
    with pytest.raises(Failed, match="more needs handles"):
        client.call("make_error_arrays", **make_errors(1000))
    for _ in range(100):
        client.begin("delete_array", array_handle=[1])
    with pytest.raises(Failed, match="a deletion needs handles"):
        client.call("delete_array", array_handle=[1])
    assert len(session.arrays) + len(session.futures) <= 40


# ---- messages


def test_too_long_requests_are_refused(
    make_proxy: MakeProxy, connect: MakeClient, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect(limited(make_proxy, message_bytes=100_000).address)
    with pytest.raises(Failed, match=r"needs 151\d{3} bytes in one message; the limit") as raised:
        client.compile(DOUBLE + " " * 150_000, [0])
    assert raised.value.code == EXHAUSTED
    assert "(--max_message_bytes) is 100000 bytes" in raised.value.message
    program = client.compile(DOUBLE, [0])
    (doubled,) = client.execute(program, [client.put(FOUR, single(0))])
    np.testing.assert_array_equal(client.fetch(doubled), 2 * FOUR)
    # One that is far too long is not even read.
    other = client.begin("compile", program={"data": b"\0" * (5 << 20)})
    assert client.status()[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError):
        other.result()
    log = ""

    def logged() -> bool:
        nonlocal log
        log += capfd.readouterr().err
        return "sent more than 4194304 bytes in one message (--max_message_bytes)" in log

    wait_until(logged)


def test_a_call_without_a_token_may_send_few_bytes(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(token="secret")
    with grpc.insecure_channel(proxy.address) as channel:
        for method in ("GetVersion", "HostBufferDelete", "HostBufferReadFromDisk"):
            call: Any = channel.unary_unary(f"/{ifrt.SERVICE}/{method}")
            with pytest.raises(grpc.RpcError, match="of 3000000 bytes") as raised:
                call(bytes([0x7A, 0xBC, 0x8D, 0xB7, 0x01]) + bytes(2_999_995))
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---- sessions


def test_sessions_beyond_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = limited(make_proxy, sessions=2)
    first = connect(proxy.address)
    with RawClient(proxy.address):
        code, details = connect(proxy.address, send_init=False).status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the limit (--max_sessions) is 2, of which 2 are open" in details
        np.testing.assert_array_equal(first.fetch(first.put(FOUR, single(0))), FOUR)
    wait_until(lambda: len(proxy.service.sessions) == 1)
    second = connect(proxy.address)
    np.testing.assert_array_equal(second.fetch(second.put(FOUR, single(0))), FOUR)


def test_a_session_refused_for_lack_of_threads_leaves_nothing(
    make_proxy: MakeProxy,
    connect: MakeClient,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = make_proxy()
    start = threading.Thread.start
    refused = {"core": "call_", "public": "session"}[transport]

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(refused):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        code, details = connect(proxy.address, send_init=False).status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "can't start new thread" in details
    wait_until(lambda: not proxy.service.sessions)
    client = connect(proxy.address)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


# ---- the end of a session


def test_nothing_of_a_session_outlives_it(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(memory_limit=1 << 30)

    def use(number: int) -> None:
        with RawClient(proxy.address) as client:
            program = client.compile(DOUBLE.replace("@double", f"@double{number}"), [0])
            arrays = [client.put(FOUR, single(0)) for _ in range(5)]
            (result,) = client.execute(program, arrays[:1])
            client.fetch(result)
            client.store(5000, bytes(1000))
            client.begin_fetch(result)[0].result()
            client.call("delete_array", array_handle=arrays[:2])
            client.call("disassemble_into_single_device_arrays", array_handle=arrays[2])
            # What never comes, and those who wait for it.
            client.make(6001, 6000, [4], single(0))
            waiting = client.execute(program, [6001])
            client.begin_ready(*waiting)
            client.begin_fetch(waiting[0])
            client.call(
                "loaded_executable_execute",
                loaded_executable_handle=program,
                args_handles=[6001],
                result_array_handle=[6002],
                result_status_handle=6003,
            )
            client.begin("loaded_executable_fetch_execute_result", result_status_handle=6003)

            assert all(live(proxy).values()), live(proxy)

    use(0)
    wait_until(lambda: not proxy.service.sessions)
    wait_until(lambda: not any(live(proxy).values()))
    threads = _threads_of_no_pool()
    for number in range(1, 5):
        use(number)
    wait_until(lambda: not any(live(proxy).values()))
    assert proxy.service.host_memory.held == 0
    wait_until(lambda: len(_threads_of_no_pool()) <= len(threads))


def _threads_of_no_pool() -> list[str]:
    """Returns the names of the threads that nobody keeps for what comes next."""
    pools = re.compile("(call|compile|helper|plain|transfer)_[0-9]+")
    return [one.name for one in threading.enumerate() if not pools.fullmatch(one.name)]


JAX_BEYOND_LIMITS = """
import os, sys
os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
import jax, numpy as np
from jax.extend import backend
from jax.extend.backend import ifrt_proxy
target = f"grpc://{sys.argv[1]}"
def connect():
    options = ifrt_proxy.ClientConnectionOptions()
    options.connection_timeout_in_seconds = 60
    return ifrt_proxy.get_client(target, options)
# (Where the package is installed, its own factory takes the place of this one.)
backend.register_backend_factory("proxy", connect, priority=-1)
jax.config.update("jax_platforms", "proxy")
jax.config.update("jax_backend_target", target)
small = jax.device_put(np.ones(4))
held = []
def many():
    held.extend(small + n for n in range(500))
    np.asarray(held[-1])
for work in (
    lambda: np.asarray(jax.device_put(np.ones(4_000_000))),
    lambda: np.asarray(jax.numpy.ones(4_000_000)),
    many,
):
    try:
        work()
    except jax.errors.JaxRuntimeError as error:
        print(str(error).splitlines()[0])
    held.clear()
    assert np.asarray(small + 1).tolist() == [2.0] * 4
print("well")
"""


def test_jax_goes_on_beyond_each_limit(make_proxy: MakeProxy) -> None:
    proxy = limited(make_proxy, host_memory_bytes=1_000_000, handles=200, message_bytes=200_000)
    done = subprocess.run(
        [sys.executable, "-c", JAX_BEYOND_LIMITS, proxy.address],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    *errors, last = done.stdout.splitlines() or [""]
    assert (done.returncode, last) == (0, "well"), done.stderr
    assert [error.split(":")[0] for error in errors] == ["RESOURCE_EXHAUSTED"] * 3
    assert [re.findall(r"--[a-z_]+", error) for error in errors] == [
        ["--host_memory_limit_bytes"],
        ["--host_memory_limit_bytes"],
        ["--max_handles"],
    ]
