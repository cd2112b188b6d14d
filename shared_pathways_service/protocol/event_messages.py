"""Events as they travel: the reading side of ``EventMessage``."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict

from shared_pathways_service.events import Event
from shared_pathways_service.events.recorded_decisions import RecordedDecision
from shared_pathways_service.protocol import resource_manager_pb2 as pb

__all__ = ["decision_of", "event_of"]


def event_of(message: pb.EventMessage) -> Event:
    """Makes the event that a message carries."""
    return Event.from_dict(_flat(message))


def decision_of(message: pb.EventMessage) -> RecordedDecision:
    """Makes the record of a decision that a message carries."""
    return RecordedDecision.from_dict(_flat(message))


def _flat(message: pb.EventMessage) -> dict[str, Any]:
    """Returns the flat form of an event; whole numbers come back as int."""
    return {
        "kind": message.kind,
        "source": message.source,
        "time": message.time,
        "monotonic": message.monotonic,
        "tenant": message.tenant if message.HasField("tenant") else None,
        "slice": message.slice if message.HasField("slice") else None,
        "duration_s": message.duration_s if message.HasField("duration_s") else None,
        "reason": message.reason if message.HasField("reason") else None,
        # A Struct knows only one kind of number.
        "data": {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in MessageToDict(message.data).items()
        },
    }
