"""A blocking stream greets first, says goodbye last, and ends when it is refused or closed."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from harness.carriers import hello
from harness.processes import DEADLINE_S
from shared_pathways_service.errors import PreflightError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.rmclient.blocking_stream import BlockingStream
from shared_pathways_service.rmclient.failures import Refusal

_Answer = Callable[[Iterator[pb.TenantMessage], grpc.ServicerContext], Iterator[pb.TenantUpdate]]
_BYE = pb.TenantMessage(bye=pb.TenantBye(reason="done"))
_WELCOME = pb.TenantUpdate(welcome=pb.TenantWelcome(version=2))


class _Manager(pb_grpc.ResourceManagerServicer):
    """Answers as it is told."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def TenantSession(  # noqa: N802 - gRPC's name
        self, requests: Iterator[pb.TenantMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.TenantUpdate]:
        return self._answer(requests, context)


@dataclasses.dataclass
class _Owner:
    """Notes what happens."""

    welcomed: threading.Event = dataclasses.field(default_factory=threading.Event)
    lost: queue.SimpleQueue[str] = dataclasses.field(default_factory=queue.SimpleQueue)
    refusals: list[Refusal] = dataclasses.field(default_factory=list)
    ends: int = 0

    def greeting(self) -> pb.TenantMessage:
        return pb.TenantMessage(hello=hello(name="ada"))

    def on_message(self, _message: pb.TenantUpdate) -> None:
        self.welcomed.set()

    def on_end(self) -> None:
        self.ends += 1

    def on_lost(self, reason: str, _pause_s: float) -> None:
        self.lost.put(reason)

    def on_refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def on_failed(self, reason: str) -> None:
        raise AssertionError(reason)

    def is_ending(self) -> bool:
        return False


def _stream(address: str, owner: _Owner) -> BlockingStream[pb.TenantMessage, pb.TenantUpdate]:
    return BlockingStream(
        address, lambda stub: stub.TenantSession, owner, token=None, name="test-stream"
    )


@contextlib.contextmanager
def _serving(answer: _Answer, directory: Path) -> Iterator[str]:
    address = f"unix:{directory / 'rm'}"
    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        manager = _Manager(answer)  # type: ignore[abstract]
        pb_grpc.add_ResourceManagerServicer_to_server(manager, server)
        server.add_insecure_port(address)
        server.start()
        yield address
        assert server.stop(0).wait(DEADLINE_S)


def test_it_greets_first_and_says_goodbye_last(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is, its last message is received.
    monkeypatch.setenv("SPS_PATIENCE", "10")
    received: list[str] = []

    def answer(requests: Iterator[pb.TenantMessage], _: object) -> Iterator[pb.TenantUpdate]:
        yield _WELCOME
        received.extend(str(request.WhichOneof("message")) for request in requests)

    owner = _Owner()
    with _serving(answer, own_directories) as address:
        stream = _stream(address, owner)
        stream.send(_BYE)  # dropped: nothing is open
        stream.start()
        assert owner.welcomed.wait(DEADLINE_S)
        stream.send(pb.TenantMessage(activity=pb.TenantActivity()))
        stream.close(_BYE)
        assert stream.join(0)
    assert received == ["hello", "activity", "bye"]
    assert (owner.ends, owner.refusals) == (1, [])


def test_a_final_answer_ends_it(own_directories: Path) -> None:
    asked: list[bool] = []

    def answer(_: object, context: grpc.ServicerContext) -> Iterator[pb.TenantUpdate]:
        asked.append(True)
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another version")

    owner = _Owner()
    with _serving(answer, own_directories) as address:
        stream = _stream(address, owner)
        stream.start()
        assert stream.join(DEADLINE_S)
    (refusal,) = owner.refusals
    assert (refusal.kind, refusal.message) == ("failed_precondition", "another version")
    assert isinstance(refusal.error, PreflightError)
    assert len(asked) == 1
    assert owner.lost.empty()


def test_it_is_closed_while_there_is_no_resource_manager(own_directories: Path) -> None:
    owner = _Owner()
    stream = _stream(f"unix:{own_directories / 'none'}", owner)
    stream.start()
    assert owner.lost.get(timeout=DEADLINE_S).startswith("UNAVAILABLE")
    stream.close(_BYE)
    assert stream.join(0)


def test_it_does_not_wait_for_a_resource_manager_that_hangs(own_directories: Path) -> None:
    hangs = threading.Event()

    def answer(_: object, _context: object) -> Iterator[pb.TenantUpdate]:
        yield _WELCOME
        hangs.wait(DEADLINE_S)

    owner = _Owner()
    with _serving(answer, own_directories) as address:
        stream = _stream(address, owner)
        stream.start()
        assert owner.welcomed.wait(DEADLINE_S)
        stream.close(_BYE)
        assert stream.join(0)
        assert not hangs.is_set()
        hangs.set()
    assert owner.refusals == []


@pytest.mark.race
def test_it_can_be_closed_at_any_time(own_directories: Path) -> None:
    received: list[list[str]] = []

    def answer(requests: Iterator[pb.TenantMessage], _: object) -> Iterator[pb.TenantUpdate]:
        received.append([str(request.WhichOneof("message")) for request in requests])
        yield _WELCOME

    with _serving(answer, own_directories) as address:
        for _ in range(50):
            owner = _Owner()
            stream = _stream(address, owner)
            stream.start()
            stream.close(_BYE)
            assert stream.join(0)
            assert owner.refusals == []
    # A stream that was opened has both; one that was not sends nothing.
    assert all(messages == ["hello", "bye"] for messages in received), received
