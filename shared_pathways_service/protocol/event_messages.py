"""Converts events to and from ``EventMessage``."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict

from shared_pathways_service.events import Event
from shared_pathways_service.events.recorded_decisions import RecordedDecision
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book.decisions import Decision, sentence

__all__ = ["decision_of", "decision_sentence", "event_message", "event_of"]


def event_message(event: Event, *, snapshot: bool = False) -> pb.EventMessage:
    """Creates the message of an event."""
    message = pb.EventMessage(
        kind=event.kind,
        source=event.source,
        time=event.time,
        monotonic=event.monotonic,
        tenant=event.tenant,
        slice=None if event.slice is None else str(event.slice),
        duration_s=event.duration_s,
        reason=event.reason,
        snapshot=snapshot,
    )
    message.data.update(event.data)
    return message


def event_of(message: pb.EventMessage) -> Event:
    """Returns the event of a message."""
    return Event.from_dict(_flat(message))


def decision_of(message: pb.EventMessage) -> RecordedDecision:
    """Returns the recorded decision of a message."""
    return RecordedDecision.from_dict(_flat(message))


def decision_sentence(message: pb.EventMessage) -> str:
    """Describes the recorded decision of a message in a sentence of one line."""
    told = decision_of(message)
    # Only the difference of the two times is known.
    decision = Decision(
        time=message.duration_s,
        kind=message.kind,
        tenant=message.tenant,
        slice=message.slice,
        virtual_index=told.virtual_index,
        instance_type=told.instance_type or "",
        reason=" ".join(message.reason.split()),
        began=0.0 if message.HasField("duration_s") else None,
    )
    return sentence(decision)


def _flat(message: pb.EventMessage) -> dict[str, Any]:
    """Returns the flat form of an event; integral numbers become int."""
    return {
        "kind": message.kind,
        "source": message.source,
        "time": message.time,
        "monotonic": message.monotonic,
        "tenant": message.tenant if message.HasField("tenant") else None,
        "slice": message.slice if message.HasField("slice") else None,
        "duration_s": message.duration_s if message.HasField("duration_s") else None,
        "reason": message.reason if message.HasField("reason") else None,
        # A Struct has only one type of numbers.
        "data": {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in MessageToDict(message.data).items()
        },
    }
