"""Messages of one stream are sent in order, with heartbeats between them."""

from __future__ import annotations

import itertools

from shared_pathways_service.rmclient.outgoing import Outgoing


def test_messages_come_in_order_and_end() -> None:
    outgoing = Outgoing("hello")
    outgoing.put("a")
    outgoing.put("bye")
    outgoing.end()
    outgoing.end()
    assert list(outgoing) == ["hello", "a", "bye"]


def test_heartbeats_are_sent_while_idle() -> None:
    late: list[float] = []

    def beat(late_s: float) -> str:
        late.append(late_s)
        return "beat"

    outgoing = Outgoing("hello")
    outgoing.beat_every(0.001, beat)
    messages = iter(outgoing)
    assert list(itertools.islice(messages, 3)) == ["hello", "beat", "beat"]
    outgoing.put("a")
    assert next(message for message in messages if message != "beat") == "a"
    outgoing.end()
    assert set(messages) <= {"beat"}
    assert min(late) > -0.001
