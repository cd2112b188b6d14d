"""Formats decisions of the resource manager, and reservations, for output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared_pathways_service.cli.display.moments import shown
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import decision_of, decision_sentence

__all__ = ["decision_dict", "decision_line", "owner_of", "reservation_line"]


def decision_dict(message: pb.EventMessage) -> dict[str, Any]:
    """Returns a decision for JSON: the event, and its sequence number in the history."""
    event = decision_of(message).to_dict()
    # (The monotonic clock of another process has no meaning here.)
    del event["monotonic"]
    return {**({"sequence": message.sequence} if message.sequence else {}), **event}


def decision_line(message: pb.EventMessage) -> str:
    """Returns a decision as one line for people."""
    return f"{shown(message.time)} {message.kind:<17} {decision_sentence(message)}"


def owner_of(reservation: Mapping[str, Any]) -> str:
    """Returns the owner of a reservation."""
    user, team = reservation["user"], reservation["team"]
    return f"user {user}" if user else f"team {team}"


def reservation_line(reservation: Mapping[str, Any]) -> str:
    """Returns a line about a reservation for people."""
    one = reservation
    return (
        f"{one['id']}: {one['count']} x {one['instance_type']} for {owner_of(one)} from "
        f"{shown(one['starts'])} until {shown(one['ends'])}, {one['held']} in use"
    )
