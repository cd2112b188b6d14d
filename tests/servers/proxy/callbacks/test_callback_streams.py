"""Callbacks on the wire: who may serve them, what answers must be, and what ends a wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

from harness.programs import wait_until
from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import Failed, Pending, RawClient, replicated, single, split
from shared_pathways_service.metrics.measurement_messages import families_of
from shared_pathways_service.protocol.proxy_status_pb2 import GetCountersResponse
from shared_pathways_service.servers.proxy.callbacks import callbacks as served
from shared_pathways_service.servers.proxy.limits import Limits
from tests.servers.proxy.callbacks.raw_callbacks import (
    CALL,
    INDEX,
    NONCE,
    RawCallbacks,
    calling,
    sharded_calling,
    telling,
)
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy

FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)


@pytest.fixture(params=["core", "public"])
def transport(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def session(proxy: LocalProxy, connect: MakeClient) -> RawClient:
    return connect(proxy.address, initialization_data={"sps_callbacks": NONCE})


@pytest.fixture
def stream(session: RawClient) -> Iterator[RawCallbacks]:
    with RawCallbacks(session) as callbacks:
        yield callbacks


def begin(session: RawClient, program: str | None = None, device: int = 0) -> tuple[int, Pending]:
    """Runs `calling`; returns the result's handle, and what waits for it."""
    compiled = session.compile(program or calling(), [device])
    size = 8 if program and "tensor<8x" in program else 4
    (result,) = session.execute(compiled, [session.put(np.arange(size), single(device))])
    return result, session.begin_ready(result)


def counters(proxy: LocalProxy) -> dict[str, float]:
    told = families_of(GetCountersResponse.FromString(proxy.service.get_counters(b"")))
    return {f.name: sum(sample.value for sample in f.samples) for f in told}


def raises(pending: Pending, code: int, *words: str) -> None:
    with pytest.raises(Failed) as raised:
        pending.result()
    assert raised.value.code == code
    for word in words:
        assert word in raised.value.message


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


def test_an_error_of_the_function_is_the_programs(session: RawClient, stream: RawCallbacks) -> None:
    _, ready = begin(session)
    stream.fail(stream.invocation().call, "no such thing")
    raises(ready, 13, "CpuCallback error calling callback: ValueError: no such thing")


def test_what_is_no_answer_fails_the_program(session: RawClient, stream: RawCallbacks) -> None:
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


def test_who_may_open_a_stream(make_proxy: MakeProxy, connect: MakeClient) -> None:
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
def test_calls_that_jax_does_not_write_are_refused(
    session: RawClient, stream: RawCallbacks, program: str, words: str
) -> None:
    raises(session.begin_compile(program, [0]), 12 if "does not run" in words else 3, words)


def test_a_session_without_callbacks_compiles_none(client: RawClient) -> None:
    raises(client.begin_compile(calling(), [0]), 9, "sps_callbacks")


def test_programs_need_an_open_stream(session: RawClient) -> None:
    _, ready = begin(session)
    raises(ready, 14, "stream for callbacks is not open")


def test_the_end_of_a_stream_ends_what_waits_for_it(proxy: LocalProxy, session: RawClient) -> None:
    with RawCallbacks(session) as stream:
        _, ready = begin(session)
        stream.invocation()
    raises(ready, 14, "stream for callbacks has ended")
    # Another stream serves the same session, also in the place of one that is still open.
    with RawCallbacks(session) as older:
        _, ready = begin(session)
        older.invocation()
        with RawCallbacks(session) as newer:
            raises(ready, 14, "another stream")
            older.wait_for_end()
            result, _ = begin(session)
            newer.answer(newer.invocation().call, FOUR)
            np.testing.assert_array_equal(session.fetch(result), FOUR + 1)
    assert counters(proxy)["sps_proxy_open_callbacks"] == 0


@pytest.mark.race
def test_the_end_of_a_session_ends_its_programs_and_its_stream(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    ended: list[list[str]] = []
    proxy = make_proxy(on_session_end=lambda running: ended.append([o.name for o in running]))
    session = connect(proxy.address, initialization_data={"sps_callbacks": NONCE})
    other = connect(proxy.address)
    with RawCallbacks(session) as stream:
        begin(session)
        stream.invocation()
        session.stream.cancel()
        stream.wait_for_end()
    # The device is free for others.
    (result,) = other.execute(other.compile(DOUBLE, [0]), [other.put(FOUR, single(0))])
    np.testing.assert_array_equal(other.fetch(result), 2 * FOUR)
    # (Whether the program still ran when the session ended is chance.)
    assert ended in ([["calling"]], [[]])
    assert not any(epoch.operations for epoch in proxy.slices.current())
    wait_until("its memory is given back", lambda: proxy.service.host_memory.held == 0)


@pytest.mark.race
@pytest.mark.parametrize("devices", [1, 4, 8])
def test_the_loss_of_a_slice_ends_the_wait(
    proxy: LocalProxy, session: RawClient, stream: RawCallbacks, devices: int
) -> None:
    if devices == 1:
        _, ready = begin(session)
    else:
        program = session.compile(sharded_calling(devices), range(devices))
        (result,) = session.execute(program, [session.put(EIGHT, split(range(devices)))])
        ready = session.begin_ready(result)
    call = stream.invocation().call
    running = [o for o in proxy.slices.current()[0].operations if o.name == "calling"]
    proxy.lose(0)
    raises(ready, 15, "virtual slice 0")
    assert stream.next().cancelled.call == call
    stream.answer(call, FOUR)  # too late
    # (Nothing is left for the watchdog, which ends the proxy.)
    program = session.compile(DOUBLE, [4])
    (result,) = session.execute(program, [session.put(FOUR, single(4))])
    np.testing.assert_array_equal(session.fetch(result), 2 * FOUR)
    assert len(running) == 1
    assert proxy.slices.place(0, 9, "spare")
    result, _ = begin(session)
    stream.answer(stream.invocation().call, FOUR)
    np.testing.assert_array_equal(session.fetch(result), FOUR + 1)


def test_other_programs_run_meanwhile(
    session: RawClient, stream: RawCallbacks, connect: MakeClient, proxy: LocalProxy
) -> None:
    result, _ = begin(session)
    call = stream.invocation().call
    double = session.compile(DOUBLE, [0])
    (dependent,) = session.execute(double, [result])
    waits = session.begin_ready(dependent)
    others = (session, connect(proxy.address))
    for client in others:
        for device in (0, 1, 4):
            (own,) = client.execute(
                client.compile(DOUBLE, [device]), [client.put(FOUR, single(device))]
            )
            np.testing.assert_array_equal(client.fetch(own), 2 * FOUR)
    assert not waits.future.done()
    stream.answer(call, FOUR)
    np.testing.assert_array_equal(session.fetch(dependent), 2 * (FOUR + 1))


def test_the_same_program_may_be_out_twice(session: RawClient, stream: RawCallbacks) -> None:
    program = session.compile(calling(), [0])
    handles = [session.execute(program, [session.put(FOUR + i, single(0))])[0] for i in range(2)]
    calls = [stream.invocation() for _ in range(2)]
    assert calls[0].call != calls[1].call
    stream.fail(calls[0].call, "the first")
    stream.answer(calls[1].call, FOUR)
    raises(session.begin_ready(handles[0]), 13, "the first")
    np.testing.assert_array_equal(session.fetch(handles[1]), FOUR + 1)


def test_over_several_slices(session: RawClient, stream: RawCallbacks) -> None:
    program = session.compile(sharded_calling(8), range(8))
    (result,) = session.execute(program, [session.put(EIGHT, split(range(8)))])
    call = stream.invocation()
    np.testing.assert_array_equal(np.frombuffer(call.data, np.float32), EIGHT)
    stream.answer(call.call, EIGHT * 3)
    np.testing.assert_array_equal(session.fetch(result), EIGHT * 3 + 1)
    assert replicated(range(8))
    # (The other devices wait for the one that calls: XLA would end the process.)
    (result,) = session.execute(program, [session.put(EIGHT, split(range(8)))])
    stream.fail(stream.invocation().call, "no such thing")
    raises(session.begin_ready(result), 13, "ValueError: no such thing")


@pytest.mark.race
@pytest.mark.parametrize("end", ["stream", "session", "slice"])
def test_programs_over_several_devices_that_wait_for_each_other_can_be_ended(
    proxy: LocalProxy, session: RawClient, stream: RawCallbacks, connect: MakeClient, end: str
) -> None:
    """XLA runs one at a time per slice: the function waits for one behind its caller."""
    calls = session.compile(sharded_calling(2), range(2))
    (outer,) = session.execute(calls, [session.put(EIGHT, split(range(2)))])
    outer_ready = session.begin_ready(outer)
    stream.invocation()
    doubles = session.compile(sharded_double(2), range(2, 4))
    (inner,) = session.execute(doubles, [session.put(EIGHT, split(range(2, 4)))])
    inner_ready = session.begin_ready(inner)
    if end == "slice":
        proxy.lose(0)
        raises(outer_ready, 15, "virtual slice 0")
        raises(inner_ready, 15, "virtual slice 0")
        assert proxy.slices.place(0, 9, "spare")
    elif end == "stream":
        stream.close()
        raises(outer_ready, 14, "stream for callbacks has ended")
        np.testing.assert_array_equal(session.fetch(inner), 2 * EIGHT)
    else:
        session.close()
    # All devices are free for others.
    other = connect(proxy.address)
    for devices in (range(2), range(2, 4), range(8)):
        program = other.compile(sharded_double(len(devices)), devices)
        (result,) = other.execute(program, [other.put(EIGHT, split(devices))])
        np.testing.assert_array_equal(other.fetch(result), 2 * EIGHT)


def test_the_client_is_told_when_a_program_is_dropped(
    session: RawClient, stream: RawCallbacks
) -> None:
    program = session.compile(calling(), [0])
    session.call("loaded_executable_destruct", loaded_executable_handle=program)
    assert stream.next().dropped.program == 7


def test_a_callback_that_is_out_for_long_is_named(
    proxy: LocalProxy,
    session: RawClient,
    stream: RawCallbacks,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(served, "LATE_S", 0.01)
    monkeypatch.setattr("shared_pathways_service.servers.proxy.session.counters.LATE_S", 0.01)
    _, ready = begin(session)
    call = stream.invocation().call
    seen: list[str] = []

    def is_named() -> bool:
        seen.append(capfd.readouterr().err)
        return "The callback function of program calling has not returned" in "".join(seen)

    wait_until("the log names it", is_named)
    assert counters(proxy)["sps_proxy_late_callback_seconds"] > 0
    stream.answer(call, FOUR)
    ready.result()


def test_xla_does_not_wait_for_calls_without_results(
    session: RawClient, stream: RawCallbacks
) -> None:
    """They come at once and in order; the program settles with the last answer."""
    result, ready = begin(session, telling(3))
    calls = [stream.invocation() for _ in range(3)]
    assert calls[0].lane
    assert {call.lane for call in calls} == {calls[0].lane}
    for call in calls:
        assert not ready.future.done()
        stream.answer(call.call)
    np.testing.assert_array_equal(session.fetch(result), FOUR + 1)


def test_the_error_of_one_that_xla_does_not_wait_for_is_the_programs(
    session: RawClient, stream: RawCallbacks
) -> None:
    _, ready = begin(session, telling(2))
    first, second = stream.invocation().call, stream.invocation().call
    stream.fail(first, "no such thing")
    stream.answer(second)
    raises(ready, 13, "CpuCallback error calling callback: ValueError: no such thing")
    # An answer with results is none.
    _, ready = begin(session, telling())
    stream.answer(stream.invocation().call, FOUR)
    raises(ready, 3, "a callback failed")


def test_many_calls_that_xla_does_not_wait_for(
    monkeypatch: pytest.MonkeyPatch, session: RawClient, stream: RawCallbacks
) -> None:
    """Beyond a limit it waits, and the order stays; the same for large arguments."""
    monkeypatch.setattr(served, "_MOST_AHEAD", 2)
    # (More operations than a program has that runs on the session's thread.)
    result, ready = begin(session, telling(80))
    for _ in range(80):
        call = stream.invocation()
        assert not ready.future.done()
        stream.answer(call.call)
    np.testing.assert_array_equal(session.fetch(result), FOUR + 1)
    monkeypatch.setattr("shared_pathways_service.servers.proxy.callbacks.callbacks.AHEAD_BYTES", 8)
    result, ready = begin(session, telling(80))
    for _ in range(80):
        call = stream.invocation()
        assert not call.lane
        stream.answer(call.call)
    np.testing.assert_array_equal(session.fetch(result), FOUR + 1)


def test_programs_call_in_their_order(session: RawClient, stream: RawCallbacks) -> None:
    """A program does not call before the functions of the one before it have returned, or a while
    has passed."""
    program = session.compile(telling(), [0])
    for i in range(3):
        session.execute(program, [session.put(FOUR + i, single(0))])
    for i in range(3):
        call = stream.invocation()
        assert np.frombuffer(call.data, np.float32)[0] == i
        stream.answer(call.call)


@pytest.mark.race
@pytest.mark.parametrize("what", ["slice", "stream", "session"])
def test_what_ends_the_wait_for_a_call_that_xla_does_not_wait_for(
    proxy: LocalProxy, session: RawClient, stream: RawCallbacks, what: str
) -> None:
    _, ready = begin(session, telling())
    call = stream.invocation().call
    if what == "slice":
        proxy.lose(0)
        raises(ready, 15, "virtual slice 0")
        assert stream.next().cancelled.call == call
    elif what == "stream":
        stream.close()
        raises(ready, 14, "stream for callbacks has ended")
    else:
        session.stream.cancel()
        stream.wait_for_end()
    wait_until("all is given back", lambda: proxy.service.host_memory.held == 0)
    wait_until(
        "nothing is under way", lambda: not any(e.operations for e in proxy.slices.current())
    )


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


def test_what_is_no_message_ends_the_stream(session: RawClient, stream: RawCallbacks) -> None:
    _, ready = begin(session)
    stream.invocation()
    stream.send(b"\xff\xff\xff")
    raises(ready, 14, "stream for callbacks has ended")
    assert CALL
