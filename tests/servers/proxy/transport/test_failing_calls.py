"""Calls that fail inside the transport, and its threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.grpc_core.core_call import CoreCall
from shared_pathways_service.servers.grpc_core.core_server import CoreServer, Route
from shared_pathways_service.servers.serving.call_threads import CallThreads
from tests.servers.proxy.conftest import wait_until
from tests.servers.proxy.transport.calls import calls, ended

# ---- a server on its own


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[CoreCall], bytes | None]], Any]]:
    """Serves one method; returns a call of it."""
    with contextlib.ExitStack() as stack:

        def start(behave: Callable[[CoreCall], bytes | None]) -> Any:
            pool = CallThreads(2, "one")
            stack.callback(pool.shutdown)
            server = CoreServer((), {"/x/One": Route(pool, behave)}, pool, slow_reader_s=DEADLINE_S)
            stack.callback(server.stop)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            channel = stack.enter_context(
                grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)])
            )
            return channel.unary_unary("/x/One")

        yield start


def failure_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call(b"", timeout=DEADLINE_S)
    code: grpc.StatusCode = raised.value.code()
    return code


def refused_by_core(call: CoreCall) -> None:
    call.receive_soon()
    call.receive_soon()


def with_a_text_that_is_none(_call: CoreCall) -> None:
    raise StatusError(Code.ABORTED, "\ud800")


@pytest.mark.parametrize(
    ("behave", "code"),
    [
        (refused_by_core, grpc.StatusCode.INTERNAL),
        (with_a_text_that_is_none, grpc.StatusCode.ABORTED),
    ],
)
def test_a_failing_call_is_ended_and_frees_its_thread(
    serve: Callable[..., Any], behave: Callable[[CoreCall], None], code: grpc.StatusCode
) -> None:
    call = serve(behave)
    for _ in range(5):
        assert failure_of(call) is code
    wait_until(lambda: not calls())


def test_a_call_that_cannot_be_ended_is_cancelled(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = serve(lambda _call: b"well")
    with monkeypatch.context() as patch:
        patch.setattr(CoreCall, "end", ended)
        assert failure_of(call) is grpc.StatusCode.CANCELLED
    assert call(b"", timeout=DEADLINE_S) == b"well"
    wait_until(lambda: not calls())


def test_a_failure_to_accept_a_call_does_not_stop_the_server(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = serve(lambda _call: b"well")
    dispatch = CoreServer._dispatch
    failed = threading.Event()

    def fail_once(server: CoreServer, event: Any, events: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise MemoryError
        dispatch(server, event, events)

    monkeypatch.setattr(CoreServer, "_dispatch", fail_once)
    lost = call.future(b"", timeout=DEADLINE_S)
    assert failed.wait(DEADLINE_S)
    assert call(b"", timeout=DEADLINE_S) == b"well"
    lost.cancel()


def test_a_late_failure_of_a_call_ends_no_other_wait(
    serve: Callable[..., Any],
) -> None:
    order: list[str] = []

    def wake(call: CoreCall) -> None:
        order.append("woken")
        call.wake()

    def behave(call: CoreCall) -> bytes:
        call.receive()
        # As the watch over late requests does that finds one late which comes just then.
        call.fail(StatusError(Code.DEADLINE_EXCEEDED, "the request is late"))
        waker = threading.Timer(0.2, wake, (call,))
        waker.start()
        call.wait(DEADLINE_S)
        order.append("waited")
        waker.join()
        return b"well"

    assert serve(behave)(b"", timeout=DEADLINE_S) == b"well"
    assert order == ["woken", "waited"]


def test_a_call_that_cannot_be_refused_is_not_counted(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = serve(lambda _call: b"well")
    servers: list[CoreServer] = []

    def no_thread(*_arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    def reject(server: CoreServer, *_arguments: Any) -> None:
        servers.append(server)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CallThreads, "submit", no_thread)
        patch.setattr(CoreServer, "_reject", reject)
        lost = call.future(b"", timeout=DEADLINE_S)
        wait_until(lambda: bool(servers))
    wait_until(lambda: not servers[0]._open)
    assert call(b"", timeout=DEADLINE_S) == b"well"
    lost.cancel()


# ---- threads for calls


@pytest.fixture
def two_threads() -> Iterator[CallThreads]:
    """An executor whose threads have ended at the test's end."""
    threads = CallThreads(2, "two")
    yield threads
    threads.shutdown(cancel_futures=True)
    assert not [t for t in threading.enumerate() if t.name.startswith("two_")]


def test_calls_beyond_the_threads_wait(two_threads: CallThreads) -> None:
    release = threading.Event()
    first = [two_threads.submit(release.wait, DEADLINE_S) for _ in range(2)]
    third = two_threads.submit(threading.current_thread)
    assert two_threads.waiting == 1
    release.set()
    assert all(future.result(DEADLINE_S) for future in first)
    assert third.result(DEADLINE_S).name.startswith("two_")
    wait_until(lambda: two_threads.waiting == 0)
    # One that is idle takes what comes.
    assert two_threads.submit(threading.current_thread).result(DEADLINE_S).name.startswith("two_")


def test_a_failure_is_reported_and_the_thread_continues(two_threads: CallThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        two_threads.submit(lambda: 1 // 0).result(DEADLINE_S)
    assert two_threads.submit(lambda: 2).result(DEADLINE_S) == 2


def test_work_refused_for_lack_of_threads_is_not_retained(
    two_threads: CallThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            two_threads.submit(seen.append, "refused")
    for name in ("a", "b", "c"):
        two_threads.submit(seen.append, name).result(DEADLINE_S)
    assert seen == ["a", "b", "c"]


def test_waiting_work_is_cancelled_at_the_end(two_threads: CallThreads) -> None:
    release = threading.Event()
    running = [two_threads.submit(release.wait, DEADLINE_S) for _ in range(2)]
    waiting = two_threads.submit(release.wait, DEADLINE_S)
    two_threads.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="no more calls"):
        two_threads.submit(release.wait)
    release.set()
    assert futures.wait(running, DEADLINE_S).not_done == set()
