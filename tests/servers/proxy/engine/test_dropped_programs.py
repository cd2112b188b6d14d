"""The end of a program that calls functions: reported from wherever the last reference ends."""

from __future__ import annotations

import queue
import threading

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.servers.proxy.callbacks.callbacks import SessionCallbacks
from shared_pathways_service.servers.proxy.memory import HostCharge, HostMemory


class Stream:
    """Drops a program on another thread while the first message is put, and waits for that."""

    def __init__(self, calls: SessionCallbacks) -> None:
        self._calls = calls
        self.dropped_at_once = False
        self.messages: queue.SimpleQueue[pb.CallbackProxyMessage] = queue.SimpleQueue()

    def put(self, message: bytes, _charge: HostCharge | None) -> None:
        found = pb.CallbackProxyMessage.FromString(message)
        if found.HasField("ready"):
            dropping = threading.Thread(target=self._calls.send_dropped, args=(7,), daemon=True)
            dropping.start()
            dropping.join(DEADLINE_S / 10)
            self.dropped_at_once = not dropping.is_alive()
        self.messages.put(found)

    def end(self) -> None:
        pass


def test_a_program_may_be_dropped_by_a_thread_that_holds_any_lock() -> None:
    calls = SessionCallbacks(HostMemory(0))
    stream = Stream(calls)
    with calls.attached(stream):
        assert stream.dropped_at_once
        assert stream.messages.get(timeout=DEADLINE_S).ready.version == 1
        assert stream.messages.get(timeout=DEADLINE_S).dropped.program == 7
