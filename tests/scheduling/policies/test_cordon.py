"""Cordon: the slice gets no new holder, its holder stays, and it counts as a spare."""

from __future__ import annotations

import math

import pytest

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import SliceState
from tests.scheduling.harness import Rm
from tests.scheduling.policies.scenes import GRACE_S


def test_an_unknown_slice_is_refused() -> None:
    rm = Rm(1)
    with pytest.raises(ValueError, match="slice-9"):
        rm.cordon("slice-9")


def test_a_cordoned_slice_gets_no_new_holder() -> None:
    rm = Rm(2)
    rm.cordon("slice-0")
    assert rm.slice("slice-0").state is SliceState.CORDONED
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-1"]
    rm.ask("bob", 1, queue=math.inf)
    assert rm.queue == ["bob"]
    rm.uncordon("slice-0")
    assert rm.on("bob") == ["slice-0"]
    assert rm.slice("slice-0").state is SliceState.READY


def test_the_holder_of_a_cordoned_slice_keeps_it() -> None:
    rm = Rm(1)
    rm.ask("ada", 1)
    rm.cordon("slice-0")
    rm.after(100.0)
    assert rm.on("ada") == ["slice-0"]
    rm.ask("bob", 1, queue=math.inf)
    rm.release("ada")
    assert rm.on("bob") == []
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_a_cordon_outlives_a_restart_of_the_worker() -> None:
    rm = Rm(1)
    rm.cordon("slice-0")
    rm.end_worker("slice-0")
    assert rm.slice("slice-0").state is SliceState.LOST
    rm.join("slice-0", life="2")
    assert rm.slice("slice-0").state is SliceState.CORDONED
    rm.uncordon("slice-0")
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-0"]


def test_a_preemptor_gets_another_slice_for_a_cordoned_one() -> None:
    rm = Rm(3)
    rm.ask("low-1", 1)
    rm.ask("low-2", 1)
    rm.ask("vip", 2, priority=1, queue=math.inf)
    assert rm.slice("slice-2").kept_for == "vip"
    rm.cordon("slice-2")
    rm.after(GRACE_S)
    assert sorted(rm.on("vip")) == ["slice-0", "slice-1"]


@pytest.mark.parametrize("mark", ["cordoned", "draining"])
def test_cordons_and_drains_outlive_a_restart(mark: str) -> None:
    rm = Rm(2, tenant_ttl_s=60.0)
    rm.ask("ada", 1)
    (rm.cordon if mark == "cordoned" else rm.drain)("slice-0")
    rm.after(10.0)
    where = rm.placed("ada")[0]
    rm = rm.restarted()
    rm.join("slice-0")
    rm.join("slice-1")
    rm.come_back("ada", (0, *where))
    assert rm.slice("slice-0").state == mark
    rm.after(GRACE_S - 10.0 - 1.0)
    assert rm.on("ada") == (["slice-0"] if mark == "cordoned" else ["slice-1"])
    assert rm.slice("slice-0").state is SliceState.CORDONED
    rm = rm.restarted()
    rm.join("slice-0")
    assert rm.slice("slice-0").state is SliceState.CORDONED
    rm.uncordon("slice-0")
    rm = rm.restarted()
    rm.join("slice-0")
    assert rm.slice("slice-0").state is SliceState.READY


def test_a_cordoned_slice_without_a_holder_counts_as_the_spare() -> None:
    rm = Rm(3, spares=1)
    rm.cordon("slice-0")
    rm.ask("ada", 2)
    assert rm.on("ada") == ["slice-1", "slice-2"]


def test_a_waiting_gang_starts_when_the_withheld_slice_is_cordoned() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 1)
    rm.end_worker("slice-1")
    rm.ask("bob", 1, queue=math.inf)
    assert rm.on("bob") == [], "slice-2 is the spare"
    rm.cordon("slice-1")
    assert rm.on("bob") == ["slice-2"]


def test_a_cordoned_slice_without_its_worker_counts_as_the_spare() -> None:
    rm = Rm(3, spares=1)
    rm.cordon("slice-0")
    rm.end_worker("slice-0")
    rm.ask("ada", 2)
    assert rm.on("ada") == ["slice-1", "slice-2"]


def test_a_held_cordoned_slice_is_a_spare_only_after_its_release() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 1)
    rm.cordon("slice-0")
    rm.ask("bob", 2, queue=math.inf)
    assert rm.on("bob") == []
    assert rm.heard("bob", m.NotifyQueued)[-1].reason == (
        "1 tpuv6e:2x2 slice is free (2 wanted; 1 more is reserved as a spare; 1 of 3 is cordoned)"
    )
    rm.release("ada")
    assert rm.on("bob") == ["slice-1", "slice-2"]


def test_an_uncordoned_slice_is_not_granted_beyond_the_spare() -> None:
    rm = Rm(3, spares=1)
    rm.cordon("slice-0")
    rm.ask("ada", 2)
    rm.uncordon("slice-0")
    rm.ask("bob", 1)
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN
    rm.end_worker("slice-1")
    assert sorted(rm.on("ada")) == ["slice-0", "slice-2"], "slice-0 is the spare again"


def test_a_cordoned_slice_counts_as_the_spare_at_once_after_a_restart() -> None:
    rm = Rm(2, spares=1)
    rm.cordon("slice-1")
    fresh = rm.restarted()
    fresh.join("slice-0")
    fresh.ask("ada", queue=math.inf)
    fresh.after(fresh.config.recovering_s)
    assert fresh.on("ada") == [], "slice-0 is the spare, as slice-1 is not known yet"
    fresh.join("slice-1")
    assert fresh.on("ada") == ["slice-0"]
