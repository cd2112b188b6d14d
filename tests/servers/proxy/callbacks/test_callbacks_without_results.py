"""Callbacks without results, for which XLA does not wait."""

from __future__ import annotations

import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.proxy.raw import RawClient, single
from shared_pathways_service.servers.proxy.callbacks import callbacks as served
from tests.servers.proxy import transports
from tests.servers.proxy.callbacks.raw_callbacks import (
    RawCallbacks,
    telling,
)
from tests.servers.proxy.callbacks.streams import FOUR, begin, raises
from tests.servers.proxy.conftest import LocalProxy

transport = transports.both


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


def test_the_error_of_a_call_without_results_fails_the_program(
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


def test_many_calls_without_results(
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
def test_pending_calls_without_results_end_like_others(
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
