"""Callbacks on the wire: streams, calls, answers and their memory."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.proxy.raw import RawClient, single
from shared_pathways_service.servers.proxy.limits import Limits
from tests.servers.proxy import transports
from tests.servers.proxy.callbacks.raw_callbacks import (
    CALL,
    INDEX,
    NONCE,
    RawCallbacks,
    calling,
    telling,
)
from tests.servers.proxy.callbacks.streams import EIGHT, FOUR, begin, counters, raises
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy

transport = transports.both


def test_a_call_and_its_answer(proxy: LocalProxy, session: RawClient, stream: RawCallbacks) -> None:
    result, ready = begin(session)
    call = stream.invocation()
    assert (call.program, call.callback) == (7, 0)
    assert [(a.dtype, list(a.shape)) for a in call.arguments] == [("float32", [4])]
    np.testing.assert_array_equal(np.frombuffer(call.data, np.float32), FOUR)
    told = counters(proxy)
    assert told["sps_proxy_open_callbacks"] == told["sps_proxy_callbacks"] == 1
    stream.answer(call.call, FOUR * 10)
    ready.result()
    np.testing.assert_array_equal(session.fetch(result), FOUR * 10 + 1)
    told = counters(proxy)
    assert (told["sps_proxy_open_callbacks"], told["sps_proxy_callbacks"]) == (0, 1)


def test_an_error_of_the_function_fails_the_program(
    session: RawClient, stream: RawCallbacks
) -> None:
    _, ready = begin(session)
    stream.fail(stream.invocation().call, "no such thing")
    raises(ready, 13, "CpuCallback error calling callback: ValueError: no such thing")


def test_an_invalid_answer_fails_the_program(session: RawClient, stream: RawCallbacks) -> None:
    wrong: list[Callable[[int], None]] = [
        stream.answer,
        lambda call: stream.answer(call, FOUR, FOUR),
        lambda call: stream.answer(call, EIGHT),
        lambda call: stream.answer(call, FOUR.astype(np.int32)),
        lambda call: stream.answer(call, FOUR, data=bytes(17)),
        lambda call: stream.piece(call, bytes(16)),
    ]
    for answer in wrong:
        _, ready = begin(session)
        answer(stream.invocation().call)
        raises(ready, 3, "a callback failed")
    # Of calls that nobody waits for, nothing comes.
    stream.answer(12345, FOUR)
    stream.piece(12345, b"x")
    result, ready = begin(session)
    call = stream.invocation().call
    stream.answer(call, FOUR, data=FOUR.tobytes()[:5])
    stream.piece(call, FOUR.tobytes()[5:])
    ready.result()
    np.testing.assert_array_equal(session.fetch(result), FOUR + 1)


def test_large_arrays_come_in_pieces(session: RawClient, stream: RawCallbacks) -> None:
    size = (1 << 18) * 2 + 5
    program = session.compile(calling(size=size), [0])
    values = np.arange(size, dtype=np.float32)
    (result,) = session.execute(program, [session.put(values, single(0))])
    call = stream.invocation()
    data = call.data + stream.next().piece.data + stream.next().piece.data
    np.testing.assert_array_equal(np.frombuffer(data, np.float32), values)
    assert len(call.data) == 1 << 20
    stream.answer(call.call, values, data=data[:100])
    stream.piece(call.call, data[100:])
    np.testing.assert_array_equal(session.fetch(result), values + 1)


def test_the_memory_of_calls_is_counted_and_limited(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(limits=Limits(host_memory_bytes=(1 << 20) + 4096))
    session = connect(proxy.address, initialization_data={"sps_callbacks": NONCE})
    with RawCallbacks(session) as stream:
        large = calling(size=1 << 17)
        small = session.compile(large, [0])
        (array,) = session.execute(session.compile(_filled(1 << 17), [0]), [])
        (first,) = session.execute(small, [array])
        call = stream.invocation().call
        # (The arguments' memory is the message's, and was given back with it.)
        (second,) = session.execute(session.compile(large, [1]), _filled_on(session, 1))
        raises(session.begin_ready(second), 8, "a callback needs", "--host_memory_limit_bytes")
        stream.fail(call, "enough")
        raises(session.begin_ready(first), 13, "enough")
    wait_until("all is given back", lambda: proxy.service.host_memory.held == 0)


def _filled(size: int) -> str:
    kind = f"tensor<{size}xf32>"
    return f"""
module @filled {{
  func.func public @main() -> {kind} {{
    %c = stablehlo.constant dense<1.0> : {kind}
    return %c : {kind}
  }}
}}
"""


def _filled_on(session: RawClient, device: int) -> list[int]:
    return session.execute(session.compile(_filled(1 << 17), [device]), [])


def test_only_the_session_may_open_its_stream(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(token="secret")
    named = {"sps_token": b"secret", "sps_callbacks": NONCE}
    session = connect(proxy.address, initialization_data=named)
    code = grpc.StatusCode
    assert RawCallbacks(session).refusal() is code.UNAUTHENTICATED
    assert RawCallbacks(session, token="another").refusal() is code.PERMISSION_DENIED
    assert RawCallbacks(session, token="secret", nonce=bytes(16)).refusal() is code.NOT_FOUND
    with RawCallbacks(session, token="secret") as stream:
        begin(session)
        stream.answer(stream.invocation().call, FOUR)
    session.close()
    again = connect(proxy.address, initialization_data={"sps_token": b"secret"})
    # (The proxy notices a moment later that the session has ended.)
    wait_until(
        "the stream of an ended session is refused",
        lambda: not RawCallbacks(again, token="secret").is_accepted(),
    )
    assert RawCallbacks(again, token="secret").refusal() is code.NOT_FOUND


def test_a_nonce_of_another_size_is_refused(proxy: LocalProxy, connect: MakeClient) -> None:
    client = connect(
        proxy.address, initialization_data={"sps_callbacks": b"short"}, send_init=False
    )
    code, text = client.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "sps_callbacks has 5 bytes" in text


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (calling(mark=""), "does not run custom call 'xla_ffi_python_cpu_callback'"),
        (calling('sps.callbacks = "7"'), "sps.callbacks is not a number and a count"),
        (calling('sps.callbacks = "7 0"'), "sps.callbacks is not a number and a count"),
        (calling("sps.callbacks = 7 : i64"), "sps.callbacks is not a number and a count"),
        (calling(how=INDEX.replace("0 :", "1 :")), "its index is 1"),
        (calling(how=INDEX.replace("ui64", "i64")), "its index is -1"),
        (calling(how=INDEX.replace("}", ", more = 1 : i64}")), "its index is -1"),
        (calling(how=""), "by XLA's typed interface"),
        (calling(how=f'{INDEX}, sps.other = "x"'), "it has the attribute sps.other"),
        (
            calling(how=f'{INDEX}, mhlo.sharding = "{{devices=[2]<=[2]}}"'),
            "neither one device nor manual",
        ),
        (calling(how=f'{INDEX}, mhlo.sharding = "{{maximal device=1}}"'), "neither one device"),
        (
            calling(how=f'{INDEX}, mhlo.sharding = "{{{{replicated}}, {{replicated}}}}"'),
            "neither one device",
        ),
        (calling(name="xla_ffi_partitioned_python_cpu_callback"), "has no results"),
        (calling(name="xla_ffi_python_gpu_callback"), "does not run custom call"),
        (calling(name="xla_python_cpu_callback"), "does not run custom call"),
    ],
)
def test_calls_unlike_jaxs_are_refused(
    session: RawClient, stream: RawCallbacks, program: str, words: str
) -> None:
    raises(session.begin_compile(program, [0]), 12 if "does not run" in words else 3, words)


def test_a_session_without_callbacks_compiles_none(client: RawClient) -> None:
    raises(client.begin_compile(calling(), [0]), 9, "sps_callbacks")


def test_programs_need_an_open_stream(session: RawClient) -> None:
    _, ready = begin(session)
    raises(ready, 14, "stream for callbacks is not open")


def test_functions_have_the_names_that_the_client_gives(
    session: RawClient, stream: RawCallbacks, proxy: LocalProxy
) -> None:
    mark = 'sps.callbacks = "7 1", sps.callback_names = ["Loss.show\\0A"]'
    result, _ = begin(session, telling(mark=mark))
    call = stream.invocation().call
    (callbacks,) = [s.callbacks for s in proxy.service.sessions if s.callbacks]
    assert [(c.program, c.function) for c in callbacks.open] == [("telling", "Loss.show?")]
    stream.answer(call)
    np.testing.assert_array_equal(session.fetch(result), FOUR + 1)
    for names in ('["a", "b"]', '"a"', "[1]"):
        program = telling(mark=f'sps.callbacks = "7 1", sps.callback_names = {names}')
        raises(session.begin_compile(program, [0]), 3, "is not an array of 1 strings")


def test_an_invalid_message_ends_the_stream(session: RawClient, stream: RawCallbacks) -> None:
    _, ready = begin(session)
    stream.invocation()
    stream.send(b"\xff\xff\xff")
    raises(ready, 14, "stream for callbacks has ended")
    assert CALL
