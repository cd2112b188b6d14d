"""Sessions on a `CoreServer`: one thread reads, handles and writes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from shared_pathways_service.servers.grpc_core.core_call import (
    RECEIVED,
    SENT,
    CoreCall,
    message_of,
)
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.session.answers import Answer, Answers
from shared_pathways_service.servers.proxy.session.session import Session

__all__ = ["CoreAnswers"]

#: While a request of up to this size is handled, the next one is received.
_SMALL = 64 << 10


class CoreAnswers(Answers):
    """The requests of one call, and their answers.

    An answer is sent by the thread that settles it if none is being sent, else by the call's thread
    when the one before is written. That thread also reads: while it waits for room, it writes.
    """

    def __init__(self, limits: Limits, call: CoreCall) -> None:
        super().__init__(limits)
        self._call = call
        self._sending = threading.Lock()
        self._being_sent: Answer | None = None
        self._queue: deque[Answer] = deque()
        # A request that arrived while the one before waited for room.
        self._early: Any = None

    def serve(self, session: Session) -> None:
        """Handles requests until the client ends them, or the call is over."""
        call = self._call
        call.receive_soon()
        while (raw := self._next_request()) is not None:
            # (One more than this one, so that none is read while this one waits for room.)
            early = len(raw) <= _SMALL and self._is_free(2)
            if early:
                call.receive_soon()
            session.handle(raw)
            # The next one may take long to arrive.
            del raw
            if not early:
                call.receive_soon()

    def flush(self) -> None:
        """Sends the waiting answers, as fast as the client reads."""
        while self._being_sent is not None and not self._call.is_over:
            self._process(self._call.next_event())

    def _next_request(self) -> bytes | None:
        event, self._early = self._early, None
        while event is None:
            self._process(self._call.next_event())
            event, self._early = self._early, None
        return message_of(event)

    def _process(self, event: Any) -> None:
        if event.tag is SENT:
            self._sent()
        elif event.tag is RECEIVED:
            self._early = event

    def _wait_for_room(self) -> None:
        self._waits = True
        while not self._call.is_over and not self._has_room():
            self._process(self._call.next_event())

    def _put(self, answer: Answer) -> None:
        with self._sending:
            if self._being_sent is None:
                self._being_sent = answer
                self._call.send_soon(answer.message, more_follows=False)
            else:
                self._queue.append(answer)

    def _sent(self) -> None:
        with self._sending:
            written = self._being_sent
            self._being_sent = following = self._queue.popleft() if self._queue else None
            if following is not None:
                self._call.send_soon(following.message, more_follows=bool(self._queue))
        if written is not None:
            self._written(written)
