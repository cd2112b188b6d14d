"""Translates between the resource manager's messages and the core's data.

Input from outside is validated here, field by field; the core receives only valid data.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import TypeAlias

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import (
    check_dns_label,
    check_int,
    check_seconds,
    check_text,
)
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.tenant_requests import read_tenant_request, tenant_of
from shared_pathways_service.scheduling.book import messages

__all__ = [
    "TenantTold",
    "activity",
    "event_message",
    "release",
    "slice_id",
    "tenant_asked",
    "tenant_update",
    "worker_joined",
]

#: The first version of the protocol that has notices and limits.
_NOTICES_SINCE = 2

_NamesSlice: TypeAlias = pb.CordonSliceRequest | pb.DrainSliceRequest | pb.UncordonSliceRequest

#: Instructions that become a message to a tenant.
TenantTold: TypeAlias = (
    messages.TellQueued
    | messages.TellPlaced
    | messages.TellUnplaced
    | messages.TellRunning
    | messages.TellPreempting
    | messages.TellIdle
    | messages.RefuseTenant
)

_KINDS = {
    messages.RefusalKind.SLICES_TAKEN: pb.TenantRefused.SLICES_TAKEN,
    messages.RefusalKind.UNKNOWN_TYPE: pb.TenantRefused.UNKNOWN_TYPE,
    messages.RefusalKind.TOO_MANY: pb.TenantRefused.TOO_MANY,
    messages.RefusalKind.LOST: pb.TenantRefused.LOST,
    messages.RefusalKind.RELEASED: pb.TenantRefused.RELEASED,
    messages.RefusalKind.LIMIT: pb.TenantRefused.LIMIT,
}
#: The kinds that version 1 receives instead of kinds that it does not know.
_KINDS_1 = {messages.RefusalKind.LIMIT: pb.TenantRefused.TOO_MANY}


def worker_joined(hello: pb.WorkerHello, known: Iterable[InstanceType]) -> messages.WorkerJoined:
    """Creates the event of a worker's hello.

    Args:
      hello: The message.
      known: The instance types of this service.

    Raises:
      InvalidRequestError: Naming the field.
    """
    types = tuple(known)
    # The real image's workers do not know their type: a service with one type may leave it out.
    alone = not hello.instance_type and len(types) == 1
    instance_type = types[0] if alone else InstanceType.parse(hello.instance_type)
    if instance_type not in types:
        listed = ", ".join(map(str, types))
        raise InvalidRequestError("instance_type", hello.instance_type, f"one of {listed}")
    if hello.host_count not in {0, instance_type.hosts}:
        expected = f"{instance_type.hosts}, the hosts of {instance_type}"
        raise InvalidRequestError("host_count", hello.host_count, expected)
    return messages.WorkerJoined(
        slice_id=check_dns_label("slice_id", hello.slice_id),
        instance_type=instance_type,
        host_index=check_int("host_index", hello.host_index, low=0, high=instance_type.hosts - 1),
        incarnation=_named("incarnation", hello.incarnation),
        address=check_text("address", hello.address),
        host=check_text("host", hello.host),
        node_pool=check_text("node_pool", hello.node_pool),
        pid=hello.pid,
        welcomed_at=hello.welcomed_at if hello.HasField("welcomed_at") else None,
    )


def tenant_asked(hello: pb.TenantHello) -> messages.TenantAsked:
    """Creates the event of a proxy's hello.

    Raises:
      InvalidRequestError: Naming the field.
    """
    request = read_tenant_request(tenant_of(hello))
    return messages.TenantAsked(
        request=request,
        incarnation=_named("incarnation", hello.incarnation),
        pid=hello.pid,
        running=hello.running,
        claims=_claims(hello.claims, len(request.virtual_slices)),
        last_generation=hello.last_generation,
        idle_count=hello.idle_count if hello.HasField("idle_count") else None,
    )


def activity(asked: messages.TenantAsked, told: pb.TenantActivity) -> messages.TenantActivity:
    """Creates the event of a proxy's report of its tenant's activity.

    Raises:
      InvalidRequestError: Naming the field.
    """
    return messages.TenantActivity(
        tenant=asked.request.name,
        incarnation=asked.incarnation,
        count=told.count,
        idle_s=check_seconds("idle_s", told.idle_s),
    )


def slice_id(request: _NamesSlice) -> str:
    """Returns the slice that an operator's request names.

    Raises:
      InvalidRequestError: It is not a slice's name.
    """
    return check_dns_label("slice", request.slice)


def release(request: pb.ReleaseTenantRequest) -> messages.TenantReleased:
    """Creates the event of a request to release.

    Raises:
      InvalidRequestError: Naming the field.
    """
    return messages.TenantReleased(
        tenant=check_dns_label("tenant", request.tenant),
        reason=check_text("reason", request.reason),
        incarnation=check_text("incarnation", request.incarnation),
    )


def reason(text: str) -> str:
    """Validates the reason that a peer gives for its end."""
    return check_text("reason", text)


def tenant_update(told: TenantTold, version: int) -> pb.TenantUpdate | None:
    """Creates the message of an instruction for a tenant.

    Args:
      told: The instruction.
      version: The proxy's version of the protocol.

    Returns:
      The message; None: that version has no such message.
    """
    match told:
        case messages.TellPreempting():
            return _preempting(told) if version >= _NOTICES_SINCE else None
        case messages.TellIdle():
            return _idle(told) if version >= _NOTICES_SINCE else None
        case messages.TellQueued():
            queued = pb.TenantQueued(
                position=told.position, reason=told.reason, holders=told.holders
            )
            return pb.TenantUpdate(queued=queued)
        case messages.TellRunning():
            running = pb.TenantRunning(placed=told.placed, wanted=told.wanted)
            return pb.TenantUpdate(running=running)
        case messages.RefuseTenant():
            return pb.TenantUpdate(refused=_refused(told, version))
        case messages.TellPlaced() | messages.TellUnplaced():
            return pb.TenantUpdate(placement=_placement(told))


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


def _preempting(told: messages.TellPreempting) -> pb.TenantUpdate:
    return pb.TenantUpdate(
        preempting=pb.TenantPreempting(
            grace_s=told.grace_s,
            by=told.by,
            withdrawn=told.withdrawn,
            virtual_indices=told.indices,
        )
    )


def _idle(told: messages.TellIdle) -> pb.TenantUpdate:
    return pb.TenantUpdate(
        idle=pb.TenantIdle(
            idle_s=told.idle_s,
            release_s=told.release_s,
            withdrawn=told.withdrawn,
            released=told.released,
            count=told.count,
        )
    )


def _refused(told: messages.RefuseTenant, version: int) -> pb.TenantRefused:
    kinds = _KINDS if version >= _NOTICES_SINCE else {**_KINDS, **_KINDS_1}
    return pb.TenantRefused(
        kind=kinds[told.kind],
        message=told.message,
        wanted=told.wanted,
        free=told.free,
        holders=told.holders,
        position=told.position,
        types=told.types,
        spares=told.spares,
    )


def _placement(told: messages.TellPlaced | messages.TellUnplaced) -> pb.Placement:
    placed = isinstance(told, messages.TellPlaced)
    return pb.Placement(
        virtual_index=told.virtual_index,
        state=pb.Placement.PLACED if placed else pb.Placement.UNPLACED,
        instance_type=str(told.instance_type),
        slice_id=told.slice_id,
        generation=told.generation,
        reason="" if isinstance(told, messages.TellPlaced) else told.reason,
    )


def _claims(claims: Iterable[pb.Claim], virtual_slices: int) -> tuple[messages.Claim, ...]:
    made = tuple(
        messages.Claim(
            virtual_index=check_int(
                "claims.virtual_index", claim.virtual_index, low=0, high=virtual_slices - 1
            ),
            slice_id=check_dns_label("claims.slice_id", claim.slice_id),
            generation=check_int("claims.generation", claim.generation, low=1),
        )
        for claim in claims
    )
    _check_once("claims.virtual_index", [claim.virtual_index for claim in made])
    _check_once("claims.slice_id", [claim.slice_id for claim in made])
    return made


def _check_once(field: str, values: Iterable[str | int]) -> None:
    for value, times in collections.Counter(values).items():
        if times > 1:
            raise InvalidRequestError(field, value, f"each once, not {times} times")


def _named(field: str, value: str) -> str:
    if not value:
        raise InvalidRequestError(field, value, "not to be empty")
    return check_text(field, value)
