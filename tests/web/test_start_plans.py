"""Plans of preemptions and reservations: which slices come from which tenants, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.web.start_plans import plans_of
from tests.pure import leaves_nothing_behind

__all__ = ["leaves_nothing_behind"]

_KIND, _OTHER = "tpuv6e:2x2", "tpuv6e:4x4"
_SOON, _LATER = "2026-01-01T00:00:30.000Z", "2026-01-01T00:10:00.000Z"


def held(name: str, tenant: str = "", **fields: Any) -> pb.SliceStatus:
    fields = {"instance_type": _KIND, "state": "ready", **fields}
    return pb.SliceStatus(id=name, tenant=tenant, **fields)


def status(
    slices: Sequence[pb.SliceStatus], tenants: Sequence[pb.TenantStatus] = (), **fields: Any
) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(slices=slices, tenants=tenants, **fields)


def told(plan: dict[str, Any]) -> list[tuple[str, str, str | None, str | None]]:
    return [(one["slice"], one["how"], one["holder"], one["at"]) for one in plan["sources"]]


def test_a_preemptor_gets_kept_slices_and_those_of_its_victims() -> None:
    slices = [
        held("s-0", kept_for="vip"),
        held("s-1", "late"),
        held("s-2", "soon"),
        held("s-3", "other"),
        held("s-4", "soon", instance_type=_OTHER),
        held("s-5", "soon", state="lost"),
        held("s-6"),
    ]
    tenants = [
        pb.TenantStatus(name="late", preemptor="vip", preempting_at=_LATER),
        pb.TenantStatus(name="soon", preemptor="vip", preempting_at=_SOON),
        pb.TenantStatus(name="other"),
    ]
    queue = [
        pb.QueueEntry(tenant="vip", position=1, wants={_KIND: 4}),
        pb.QueueEntry(tenant="bob", position=2, wants={_KIND: 1}),
    ]
    [plan] = plans_of(status(slices, tenants, queue=queue))
    assert (plan["id"], plan["tenant"], plan["reservation"]) == ("tenant vip", "vip", None)
    assert told(plan) == [
        ("s-0", "kept", None, None),
        ("s-2", "preempted", "soon", _SOON),
        ("s-1", "preempted", "late", _LATER),
    ]
    assert (plan["wants"], plan["missing"]) == ({_KIND: 4}, 1)
    # A victim gives up all its slices; the preemptor gets as many as it wants.
    queue[0].wants[_KIND] = 2
    [plan] = plans_of(status(slices, tenants, queue=queue))
    assert (len(plan["sources"]), plan["missing"]) == (2, 0)


def test_a_reservation_gets_its_own_then_free_slices_then_those_that_end_first() -> None:
    slices = [
        held("s-0", "ada"),
        held("s-1", "endless"),
        held("s-2", "late"),
        held("s-3", "soon"),
        held("s-4"),
        held("s-5"),
        held("s-6", kept_for="vip"),
        held("s-7", instance_type=_OTHER),
    ]
    tenants = [
        pb.TenantStatus(name="ada", user="ada", team="blue"),
        pb.TenantStatus(name="endless", user="eve"),
        pb.TenantStatus(name="late", user="eve", ends=_LATER),
        pb.TenantStatus(name="soon", user="eve", ends=_SOON),
    ]
    one = pb.ReservationStatus(
        name="r", instance_type=_KIND, count=6, user="ada", starts=100.0, ends=200.0, held=1
    )
    # (One free slice of the type is a spare.)
    [plan] = plans_of(status(slices, tenants, reservations=[one], spares=1))
    assert (plan["id"], plan["tenant"], plan["reservation"]) == ("reservation r", None, "r")
    assert plan["starts"] == "1970-01-01T00:01:40.000Z"
    assert told(plan) == [
        ("s-0", "held", "ada", None),
        ("s-4", "free", None, None),
        ("s-3", "ends", "soon", _SOON),
        ("s-2", "ends", "late", _LATER),
        ("s-1", "unknown", "endless", None),
    ]
    assert plan["missing"] == 1
    # A spare stands in for a slice without a holder that an operator has withdrawn. Each type has
    # its own.
    for state, is_spare_kept in (("cordoned", False), ("draining", False), ("lost", True)):
        more = [
            held("s-8", state=state),
            held("s-9", "ada", state="cordoned"),
            held("s-10", state="cordoned", instance_type=_OTHER),
        ]
        [plan] = plans_of(status([*slices, *more], tenants, reservations=[one], spares=1))
        assert [name for name, how, *_ in told(plan) if how == "free"] == (
            ["s-4"] if is_spare_kept else ["s-4", "s-5"]
        )
    team = pb.ReservationStatus(name="t", instance_type=_KIND, count=1, team="blue", held=1)
    assert plans_of(status(slices, tenants, reservations=[team])) == []
