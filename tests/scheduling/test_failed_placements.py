"""A holder gets another slice if an executor has ended, or its proxy cannot reach one."""

from __future__ import annotations

from shared_pathways_service.scheduling.book import messages as m
from tests.scheduling.harness import TWO_HOSTS, Rm
from tests.scheduling.test_executor_assignments import PAIR, assigned, end


def test_a_holder_whose_executor_has_ended_gets_another_slice() -> None:
    rm = Rm({TWO_HOSTS: 2}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    end(rm, PAIR, 1)
    # (The network around this host may be why it has ended.)
    [(spare, generation)] = rm.placed("ada").values()
    assert (spare != PAIR, generation) == (True, 2)
    end(rm, spare, 2)
    assert rm.placed("ada") == {0: (PAIR, 3)}


def test_the_slice_that_failed_longest_ago_is_placed_again_first() -> None:
    rm = Rm({TWO_HOSTS: 3}, executors=True)
    rm.ask("ada", (TWO_HOSTS, TWO_HOSTS))
    (first, _), (second, _) = rm.placed("ada").values()
    end(rm, first, 1)
    third, generation = rm.placed("ada")[0]
    rm.after(1.0)
    end(rm, third, generation)
    assert rm.placed("ada")[0][0] == first
    # This one has been held for longer, and fails last.
    rm.after(1.0)
    end(rm, second, 2)
    assert rm.placed("ada")[1][0] == third


def report(
    rm: Rm,
    generation: int,
    *,
    tenant: str = "ada",
    incarnation: str = "",
    host_index: int | None = 0,
) -> None:
    rm.do(
        m.PlacementUnreachable(
            tenant=tenant,
            incarnation=incarnation or f"{tenant}/1",
            virtual_index=0,
            generation=generation,
            host_index=host_index,
            reason="no answer",
        )
    )


def test_a_holder_whose_proxy_cannot_reach_an_executor_gets_another_slice() -> None:
    rm = Rm(2, executors=True)
    rm.ask("ada")
    rm.said.clear()
    report(rm, 1)
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert lost.reason == "ada cannot reach the executor on host 0 of slice-0: no answer"
    # (The slice comes first by its name.)
    assert rm.placed("ada") == {0: ("slice-1", 2)}
    assert assigned(rm) == [("slice-0", 0, "", 0), ("slice-1", 0, "ada", 2)]
    # For others it is as good as any.
    rm.ask("bob")
    assert rm.placed("bob") == {0: ("slice-0", 3)}


def test_the_same_slice_is_placed_again_if_no_other_one_is_free() -> None:
    rm = Rm(1, executors=True)
    rm.ask("ada")
    report(rm, 1)
    assert rm.placed("ada") == {0: ("slice-0", 2)}
    assert assigned(rm)[-1] == ("slice-0", 0, "ada", 2)


def test_slices_that_a_proxy_could_not_reach_are_tried_in_turn() -> None:
    rm = Rm(3, executors=True)
    rm.ask("ada")
    seen = []
    for generation in range(1, 7):
        [(slice_id, _)] = rm.placed("ada").values()
        seen.append(slice_id)
        report(rm, generation)
        rm.after(64.0)
    assert seen == ["slice-0", "slice-1", "slice-2"] * 2


def test_the_holder_of_a_drained_slice_does_not_move_to_one_where_its_executor_has_ended() -> None:
    rm = Rm(3, executors=True)
    rm.ask("ada")
    end(rm, "slice-0", 1)
    assert rm.on("ada") == ["slice-1"]
    rm.drain("slice-1")
    rm.after(rm.config.preemption_grace_s + 1)
    assert rm.on("ada") == ["slice-2"]


def test_only_the_placement_that_a_tenant_holds_can_be_reported() -> None:
    rm = Rm(2, executors=True)
    rm.ask("ada")
    rm.ask("bob")
    for generation, tenant, incarnation in (
        (1, "bob", ""),
        (2, "ada", ""),
        (1, "ada", "another"),
        (1, "eve", ""),
    ):
        report(rm, generation, tenant=tenant, incarnation=incarnation)
    report(rm, 1)
    assert rm.placed("ada") == {0: ("slice-0", 3)}
    report(rm, 1)
    rm.after(64.0)
    assert rm.placed("ada") == {0: ("slice-0", 3)}
    assert rm.placed("bob") == {0: ("slice-1", 2)}


def test_further_reports_wait_longer_until_there_are_none_for_a_while() -> None:
    rm = Rm(1, executors=True)
    rm.ask("ada")

    def waited(generation: int) -> float:
        began = rm.now
        report(rm, generation)
        report(rm, generation)  # on another stream
        while rm.placed("ada") == {0: ("slice-0", generation)}:
            rm.after(1.0)
        return rm.now - began

    assert [waited(generation) for generation in range(1, 10)] == [0, 1, 2, 4, 8, 16, 32, 64, 64]
    rm.after(600.0)
    assert waited(10) == 0


def test_while_a_report_waits_only_the_end_of_its_executor_counts() -> None:
    rm = Rm({TWO_HOSTS: 1}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    report(rm, 1)
    report(rm, 2)
    # Its proxy has given them all up, and ends those that it can reach.
    end(rm, PAIR, 2, host=1)
    assert rm.placed("ada") == {0: (PAIR, 2)}
    rm.said.clear()
    end(rm, PAIR, 2, host=0)
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert lost.reason.startswith(f"the executor of host 0 of {PAIR} was killed")
    assert rm.placed("ada") == {0: (PAIR, 3)}
    # (That one was not by a report.)
    report(rm, 3)
    rm.after(1.0)
    assert rm.placed("ada") == {0: (PAIR, 4)}
    report(rm, 4)
    end(rm, PAIR, 4, host=1)
    # This one has lost its connection as well.
    end(rm, PAIR, 4, host=0, exit_code=0)
    rm.after(1.0)
    assert rm.placed("ada") == {0: (PAIR, 4)}
    rm.after(1.0)
    assert rm.placed("ada") == {0: (PAIR, 5)}
