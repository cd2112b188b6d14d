"""What a link sends and in which order, on a stream that records it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.chunks import Chunk, parsed_chunk, serialized_chunk
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.executor_link import (
    PROGRAMS_ENOUGH,
    PROGRAMS_TOGETHER,
    ExecutorLink,
    ask_all,
)
from shared_pathways_service.servers.proxy.executors.public_stream import StreamBrokenError
from shared_pathways_service.servers.serving.flushing import Flusher

ENOUGH, TOGETHER = PROGRAMS_ENOUGH, PROGRAMS_TOGETHER


class Stream:
    """Records messages; they wait while `is_busy`."""

    def __init__(self, next_message: Callable[[], bytes | None]) -> None:
        self.is_busy = False
        self.sent: list[list[str]] = []
        self.numbers: list[int] = []
        self.woken = threading.Event()
        self.incoming: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._next_message = next_message

    def wake(self) -> None:
        while not self.is_busy and (data := self._next_message()) is not None:
            if chunk := parsed_chunk(data):
                self.sent.append([f"bytes {chunk.data.tobytes().decode()}"])
                self.numbers.append(chunk.bytes_of)
                continue
            commands = pb.ExecutorCommands.FromString(data).commands
            self.numbers += [command.number for command in commands if command.number]
            self.sent.append([describe(command) for command in commands])
        self.woken.set()

    def receive(self) -> Iterator[bytes]:
        while (data := self.incoming.get()) is not None:
            yield data
        raise StreamBrokenError("it is gone")

    def cancel(self) -> None:
        self.incoming.put(None)

    def close(self) -> None:
        pass


def describe(command: pb.ExecutorCommand) -> str:
    if command.HasField("free"):
        return f"free {list(command.free.arrays)} {list(command.free.programs)}"
    if command.HasField("run"):
        return f"run {command.run.results[0]}"
    return f"fetch {command.fetch.array}"


@pytest.fixture
def freed_wait_s() -> float:
    """Seconds for which what is freed waits for a command: so many that it is sent with one."""
    return DEADLINE_S


@pytest.fixture
def links(freed_wait_s: float) -> Iterator[tuple[list[ExecutorLink], list[Stream]]]:
    streams: list[Stream] = []

    def open_stream(*arguments: Any) -> Stream:
        streams.append(Stream(arguments[-1]))
        return streams[-1]

    flusher = Flusher(freed_wait_s)
    links = [
        ExecutorLink(
            f"host:{port}",
            None,
            open_stream,
            flusher,
            on_lost=lambda _link, _reason: None,
            on_broken=lambda _client: None,
        )
        for port in (1, 2)
    ]
    yield links, streams
    for link in links:
        link.close()
    flusher.close()


Links = tuple[list[ExecutorLink], list[Stream]]


def fetch(array: int) -> pb.ExecutorCommand:
    return pb.ExecutorCommand(fetch=pb.FetchArray(array=array))


def test_what_is_freed_goes_with_the_next_command_in_the_order_of_the_calls(links: Links) -> None:
    (link, _), (stream, _) = links
    stream.is_busy = True
    link.ask(fetch(1))
    link.free("arrays", 1)
    link.free("programs", 2)
    link.ask(fetch(3))
    link.free("arrays", 3)
    stream.is_busy = False
    link.tell(fetch(4))
    assert stream.sent == [["fetch 1", "free [1] [2]", "fetch 3", "free [3] []", "fetch 4"]]


#: How programs ended.
Ended = queue.SimpleQueue[pb.ExecutorReport | StatusError]


def run(client: int, result: int) -> pb.ExecutorCommand:
    return pb.ExecutorCommand(client=client, run=pb.RunProgram(results=[result]))


def report(stream: Stream, number: int, **others: Any) -> None:
    made = pb.ExecutorReport(number=number, **others)
    stream.incoming.put(pb.ExecutorReports(reports=[made]).SerializeToString())


def test_an_executor_with_enough_programs_gets_the_next_ones_together(links: Links) -> None:
    (link, _), (stream, _) = links
    ended: Ended = queue.SimpleQueue()
    for result in range(ENOUGH + 2):
        link.start(run(1, result), ended.put)
    assert stream.sent == [[f"run {result}"] for result in range(ENOUGH)]
    # Not those of another client, and no other commands.
    link.start(run(2, 77), ended.put)
    assert stream.sent[ENOUGH:] == [[f"run {ENOUGH}", f"run {ENOUGH + 1}", "run 77"]]
    link.start(run(1, 88), ended.put)
    link.tell(fetch(1))
    assert stream.sent[ENOUGH + 1 :] == [["run 88", "fetch 1"]]
    # With the next report.
    link.start(run(1, 99), ended.put)
    stream.woken.clear()
    report(stream, stream.numbers[0], run_ns=7)
    done = ended.get(timeout=DEADLINE_S)
    assert isinstance(done, pb.ExecutorReport)
    assert done.run_ns == 7
    assert stream.woken.wait(DEADLINE_S)
    assert stream.sent[ENOUGH + 2 :] == [["run 99"]]
    # Or with so many others.
    for result in range(TOGETHER):
        link.start(run(1, result), ended.put)
    assert stream.sent[ENOUGH + 3 :] == [[f"run {result}" for result in range(TOGETHER)]]


def test_a_started_program_ends_with_its_error_or_the_loss_of_its_executor(links: Links) -> None:
    (link, _), (stream, _) = links
    ended: Ended = queue.SimpleQueue()
    for result in range(2):
        link.start(run(1, result), ended.put)
    report(stream, stream.numbers[0], code=Code.INTERNAL.value, message="it failed")
    error = ended.get(timeout=DEADLINE_S)
    assert isinstance(error, StatusError)
    assert (error.code, error.message) == (Code.INTERNAL, "it failed")
    stream.incoming.put(None)
    for _ in range(2):
        error = ended.get(timeout=DEADLINE_S)
        assert isinstance(error, StatusError)
        assert error.code is Code.DATA_LOSS
        link.start(run(1, 5), ended.put)


@pytest.mark.parametrize("freed_wait_s", [0.005])
def test_what_is_freed_is_sent_without_a_command(links: Links) -> None:
    (link, _), (stream, _) = links
    for array in (1, 2):
        stream.woken.clear()
        link.free("arrays", array)
        assert stream.woken.wait(DEADLINE_S)
        assert stream.sent.pop() == [f"free [{array}] []"]


def test_a_command_for_several_executors_gets_the_report_of_each(links: Links) -> None:
    both, streams = links
    asked = ask_all(both, fetch(1))
    (number,) = set(streams[0].numbers + streams[1].numbers)
    for stream, code in zip(streams, (0, Code.INTERNAL.value), strict=True):
        assert stream.sent == [["fetch 1"]]
        report = pb.ExecutorReport(number=number, code=code, message="it failed")
        stream.incoming.put(pb.ExecutorReports(reports=[report]).SerializeToString())
    assert asked[0].result(DEADLINE_S).number == number
    error = asked[1].exception(DEADLINE_S)
    assert isinstance(error, StatusError)
    assert (error.code, error.message) == (Code.INTERNAL, "it failed")


def test_a_large_command_gets_a_message_of_its_own(links: Links) -> None:
    (link, _), (stream, _) = links
    large = pb.ExecutorCommand(fetch=pb.FetchArray(array=1), client=1)
    large.put.shards.append(bytes(40 << 20))
    stream.is_busy = True
    for _ in range(2):
        link.tell(large)
    stream.is_busy = False
    link.tell(fetch(2))
    assert [len(message) for message in stream.sent] == [1, 2]


def test_commands_pass_bytes_and_a_put_follows_its_own(links: Links) -> None:
    (link, _), (stream, _) = links
    stream.is_busy = True
    asked = link.ask(fetch(1), sends=map(memoryview, (b"a", b"b")))
    link.tell(fetch(2))
    stream.is_busy = False
    link.flush()
    assert stream.sent == [["fetch 2"], ["bytes a"], ["bytes b"], ["fetch 1"]]
    assert len(set(stream.numbers)) == 1
    assert not asked.done()


def test_bytes_come_before_the_report_of_their_command(links: Links) -> None:
    (link, _), (stream, _) = links
    received: list[memoryview] = []
    asked = link.ask(fetch(1), receives=received)
    (number,) = stream.numbers
    for data in (b"a", b"b"):
        stream.incoming.put(serialized_chunk(Chunk(number, memoryview(data))))
    report = pb.ExecutorReport(number=number)
    stream.incoming.put(pb.ExecutorReports(reports=[report]).SerializeToString())
    asked.result(DEADLINE_S)
    assert received == [b"a", b"b"]


def test_a_lost_executor_fails_what_waits_for_it_and_what_comes_later(links: Links) -> None:
    (link, _), (stream, _) = links
    waiting = link.ask(fetch(1))
    stream.incoming.put(None)
    for asked in (waiting, link.ask(fetch(2))):
        error = asked.exception(DEADLINE_S)
        assert isinstance(error, StatusError)
        assert error.code is Code.DATA_LOSS
        assert "it is gone" in error.message
    assert link.lost is not None


def test_a_lost_executor_drops_what_was_to_be_sent(links: Links) -> None:
    (link, _), (stream, _) = links
    stream.is_busy = True
    asked = link.ask(fetch(1), sends=map(memoryview, (b"a",)))
    link.tell(fetch(2))
    link.free("arrays", 3)
    stream.incoming.put(None)
    assert isinstance(asked.exception(DEADLINE_S), StatusError)
    stream.is_busy = False
    link.tell(fetch(4))
    link.flush()
    stream.wake()
    assert stream.sent == []
    assert link.sent_bytes == 0


def test_the_flusher_ends_also_while_it_flushes() -> None:
    flusher = Flusher(0.005)
    is_flushing, may_end = threading.Event(), threading.Event()

    class Link:
        def flush(self) -> None:
            is_flushing.set()
            assert may_end.wait(DEADLINE_S)

    flusher.flush_soon(Link())
    assert is_flushing.wait(DEADLINE_S)
    closing = threading.Thread(target=flusher.close)
    closing.start()
    wait_until("what is due at the end", lambda: not flusher._due.empty())
    may_end.set()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name == "flusher"]


def test_the_flusher_goes_on_after_an_error_of_a_link() -> None:
    flusher = Flusher(0.005)
    flushed = threading.Event()

    class Broken:
        def flush(self) -> None:
            raise MemoryError

    class Whole:
        def flush(self) -> None:
            flushed.set()

    flusher.flush_soon(Broken())
    flusher.flush_soon(Whole())
    assert flushed.wait(DEADLINE_S)
    flusher.close()
