"""Translates between the resource manager's messages and the core's data.

Input from outside is validated here, field by field; the core receives only valid data.
"""

from __future__ import annotations

import collections
import secrets
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
from shared_pathways_service.events import LAST_MOMENT
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.tenant_requests import read_tenant_request, tenant_of
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.scheduling.book.reserved import Reservation

__all__ = [
    "TenantInstruction",
    "activity",
    "placement_unreachable",
    "release",
    "reservation",
    "slice_id",
    "tenant_asked",
    "tenant_update",
    "worker_joined",
]

#: The first version of the protocol that has notices and limits.
_NOTICES_SINCE = 2

_NamesSlice: TypeAlias = pb.CordonSliceRequest | pb.DrainSliceRequest | pb.UncordonSliceRequest

#: Instructions that become a message to a tenant.
TenantInstruction: TypeAlias = (
    messages.NotifyQueued
    | messages.NotifyPlaced
    | messages.NotifyUnplaced
    | messages.NotifyRunning
    | messages.NotifyPreempting
    | messages.NotifyIdle
    | messages.RefuseTenant
)


def worker_joined(hello: pb.WorkerHello, known: Iterable[InstanceType]) -> messages.WorkerJoined:
    """Creates the event of a worker's hello; `known` are the instance types of this service.

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


def activity(asked: messages.TenantAsked, report: pb.TenantActivity) -> messages.TenantActivity:
    """Creates the event of a proxy's report of its tenant's activity.

    Raises:
      InvalidRequestError: Naming the field.
    """
    return messages.TenantActivity(
        tenant=asked.request.name,
        incarnation=asked.incarnation,
        count=report.count,
        idle_s=check_seconds("idle_s", report.idle_s),
    )


def placement_unreachable(
    asked: messages.TenantAsked, report: pb.PlacementLost
) -> messages.PlacementUnreachable:
    """Creates the event of a proxy's report that it cannot use a placement.

    Raises:
      InvalidRequestError: Naming the field.
    """
    kinds = asked.request.virtual_slices
    index = check_int("lost.virtual_index", report.virtual_index, low=0, high=len(kinds) - 1)
    host = report.host_index if report.HasField("host_index") else None
    if host is not None:
        check_int("lost.host_index", host, low=0, high=kinds[index].hosts - 1)
    return messages.PlacementUnreachable(
        tenant=asked.request.name,
        incarnation=asked.incarnation,
        virtual_index=index,
        generation=check_int("lost.generation", report.generation, low=1),
        host_index=host,
        reason=check_text("lost.reason", report.reason),
    )


def slice_id(request: _NamesSlice) -> str:
    """Returns the slice that an operator's request names.

    Raises:
      InvalidRequestError: It is not a slice's name.
    """
    return check_dns_label("slice", request.slice)


def reservation(request: pb.ReserveSlicesRequest, now: float) -> Reservation:
    """Creates the reservation of a request, with a new name.

    Raises:
      InvalidRequestError: Naming the field.
    """
    user, team = check_text("user", request.user), check_text("team", request.team)
    if bool(user) == bool(team):
        raise InvalidRequestError("user", user, "either a user or a team")
    return Reservation(
        name=f"res-{secrets.token_hex(4)}",
        instance_type=str(InstanceType.parse(request.instance_type)),
        count=check_int("count", request.count, low=1),
        user=user,
        team=team,
        starts=max(now, _moment("starts", request.starts, now)),
        ends=_moment("ends", request.ends, now),
    )


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


def tenant_update(instruction: TenantInstruction, version: int) -> pb.TenantUpdate | None:
    """Creates the message of an instruction; None: the proxy's version has no such message."""
    match instruction:
        case messages.NotifyPreempting():
            return _preempting(instruction) if version >= _NOTICES_SINCE else None
        case messages.NotifyIdle():
            return _idle(instruction) if version >= _NOTICES_SINCE else None
        case messages.NotifyQueued():
            queued = pb.TenantQueued(
                position=instruction.position,
                reason=instruction.reason,
                holders=instruction.holders,
            )
            return pb.TenantUpdate(queued=queued)
        case messages.NotifyRunning():
            running = pb.TenantRunning(placed=instruction.placed, wanted=instruction.wanted)
            return pb.TenantUpdate(running=running)
        case messages.RefuseTenant():
            return pb.TenantUpdate(refused=_refused(instruction, version))
        case messages.NotifyPlaced() | messages.NotifyUnplaced():
            return pb.TenantUpdate(placement=_placement(instruction))


def _preempting(instruction: messages.NotifyPreempting) -> pb.TenantUpdate:
    return pb.TenantUpdate(
        preempting=pb.TenantPreempting(
            grace_s=instruction.grace_s,
            by=instruction.by,
            withdrawn=instruction.withdrawn,
            virtual_indices=instruction.indices,
        )
    )


def _idle(instruction: messages.NotifyIdle) -> pb.TenantUpdate:
    return pb.TenantUpdate(
        idle=pb.TenantIdle(
            idle_s=instruction.idle_s,
            release_s=instruction.release_s,
            withdrawn=instruction.withdrawn,
            released=instruction.released,
            count=instruction.count,
        )
    )


def _refused(instruction: messages.RefuseTenant, version: int) -> pb.TenantRefused:
    kind = instruction.kind
    if version < _NOTICES_SINCE and kind is messages.RefusalKind.LIMIT:
        kind = messages.RefusalKind.TOO_MANY  # the kind of version 1 for all limits
    return pb.TenantRefused(
        kind=pb.TenantRefused.Kind.Value(kind.name),
        message=instruction.message,
        wanted=instruction.wanted,
        free=instruction.free,
        holders=instruction.holders,
        position=instruction.position,
        types=instruction.types,
        spares=instruction.spares,
        waiting_is_futile=instruction.waiting_is_futile,
    )


def _placement(instruction: messages.NotifyPlaced | messages.NotifyUnplaced) -> pb.Placement:
    placed = isinstance(instruction, messages.NotifyPlaced)
    return pb.Placement(
        virtual_index=instruction.virtual_index,
        state=pb.Placement.PLACED if placed else pb.Placement.UNPLACED,
        instance_type=str(instruction.instance_type),
        slice_id=instruction.slice_id,
        generation=instruction.generation,
        reason="" if isinstance(instruction, messages.NotifyPlaced) else instruction.reason,
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


def _moment(field: str, given: float, now: float) -> float:
    moment = now - given if given <= 0 else given
    if not 0 <= moment <= LAST_MOMENT:
        raise InvalidRequestError(field, given, "seconds since the epoch, or negative: from now")
    return moment
