"""What ends the wait for a callback: streams, sessions and lost slices."""

from __future__ import annotations

import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import RawClient, replicated, single, split
from shared_pathways_service.servers.proxy.callbacks import callbacks as served
from tests.servers.proxy import transports
from tests.servers.proxy.callbacks.raw_callbacks import (
    NONCE,
    RawCallbacks,
    calling,
    sharded_calling,
)
from tests.servers.proxy.callbacks.streams import EIGHT, FOUR, begin, counters, raises
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy

transport = transports.both


def test_the_end_of_a_stream_ends_pending_calls(proxy: LocalProxy, session: RawClient) -> None:
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
    wait_until("the end of the session is reported", lambda: ended)
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


def test_a_program_may_have_two_pending_calls(session: RawClient, stream: RawCallbacks) -> None:
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
def test_mutually_waiting_programs_can_be_ended(
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


def test_the_client_is_notified_when_a_program_is_dropped(
    session: RawClient, stream: RawCallbacks
) -> None:
    program = session.compile(calling(), [0])
    session.call("loaded_executable_destruct", loaded_executable_handle=program)
    assert stream.next().dropped.program == 7


def test_a_long_callback_is_named(
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
