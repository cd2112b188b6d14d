"""Workers are assigned the holders of their slices, and holders learn of their executors."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.events.tenants import SliceUnplaced
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.persisted import Persist
from tests.scheduling.harness import SMALL, TWO_HOSTS, Rm, events_of

PAIR = "tpuv6e-2x4-0"
KILLED = "was killed by signal 9 (out of memory?)"


def assigned(rm: Rm) -> list[tuple[str, int, str, int]]:
    """Returns what workers were assigned since this was last asked."""
    found = [
        (one.slice_id, one.host_index, one.tenant, one.generation)
        for one in rm.said
        if isinstance(one, m.AssignWorker)
    ]
    rm.said.clear()
    return found


def serve(rm: Rm, slice_id: str, generation: int, *hosts: int) -> None:
    for host in hosts or (0,):
        rm.do(m.ExecutorServing(**who(slice_id, host), generation=generation))


def end(rm: Rm, slice_id: str, generation: int, host: int = 0, exit_code: int = -9) -> None:
    rm.do(
        m.ExecutorEnded(
            **who(slice_id, host), generation=generation, reason=KILLED, exit_code=exit_code
        )
    )


def who(slice_id: str, host: int) -> dict[str, Any]:
    incarnation = f"{slice_id}/{host}/1"
    return {"slice_id": slice_id, "host_index": host, "incarnation": incarnation}


def test_without_executors_nobody_is_assigned_anything() -> None:
    rm = Rm(2)
    rm.ask("ada")
    rm.release("ada")
    assert assigned(rm) == []


def test_all_hosts_of_a_slice_are_assigned_its_holder_once_that_is_on_the_disk() -> None:
    rm = Rm({TWO_HOSTS: 2}, executors=True)
    said = rm.ask("ada", (TWO_HOSTS,))
    assert isinstance(said[0], Persist)
    assert assigned(rm) == [(PAIR, 0, "ada", 1), (PAIR, 1, "ada", 1)]
    rm.release("ada")
    assert assigned(rm) == [(PAIR, 0, "", 0), (PAIR, 1, "", 0)]


def test_a_host_that_joins_is_assigned_nothing_until_somebody_holds_its_slice() -> None:
    rm = Rm(1, ready=False, executors=True)
    rm.join("slice-0")
    assert assigned(rm) == [("slice-0", 0, "", 0)]


def test_a_holder_learns_of_its_executors_when_those_of_all_hosts_serve() -> None:
    rm = Rm({TWO_HOSTS: 1}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    serve(rm, PAIR, 1, 1)
    assert not rm.heard("ada", m.NotifyExecutors)
    serve(rm, PAIR, 1, 0)
    told = m.NotifyExecutors(tenant="ada", virtual_index=0, slice_id=PAIR, generation=1)
    assert rm.heard("ada", m.NotifyExecutors) == [told]
    # It is told again when it comes back, after its placement; and not while it is away.
    rm.cut("ada")
    rm.said.clear()
    serve(rm, PAIR, 1, 0)
    assert not rm.heard("ada", m.NotifyExecutors)
    said = rm.come_back("ada")
    (placed,) = (one for one in said if isinstance(one, m.NotifyPlaced))
    assert said.index(told) > said.index(placed)


def test_executors_of_an_earlier_holder_are_none_of_the_next() -> None:
    rm = Rm(1, executors=True)
    rm.ask("ada")
    rm.release("ada")
    serve(rm, "slice-0", 1)  # reported before the assignment of none had arrived
    rm.ask("bob")
    assert not rm.heard("bob", m.NotifyExecutors)
    end(rm, "slice-0", 1)
    assert rm.placed("bob") == {0: ("slice-0", 2)}
    serve(rm, "slice-0", 2)
    assert rm.heard("bob", m.NotifyExecutors)


def test_a_holder_whose_executor_ends_gets_a_slice_anew() -> None:
    rm = Rm({TWO_HOSTS: 1}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    serve(rm, PAIR, 1, 0, 1)
    rm.said.clear()
    end(rm, PAIR, 1, host=1)
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert lost.reason == f"the executor of host 1 of {PAIR} {KILLED}"
    assert rm.placed("ada") == {0: (PAIR, 2)}
    assert assigned(rm) == [(PAIR, 0, "ada", 2), (PAIR, 1, "ada", 2)]
    # The other host's executor served the placement before: it is not taken for the new one.
    serve(rm, PAIR, 2, 1)
    assert not rm.heard("ada", m.NotifyExecutors)


def test_the_first_executor_that_ends_is_the_cause_of_the_loss() -> None:
    rm = Rm({TWO_HOSTS: 2}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    serve(rm, PAIR, 1, 0, 1)
    end(rm, PAIR, 1, host=1)
    end(rm, PAIR, 1, host=0)
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert lost.reason == f"the executor of host 1 of {PAIR} {KILLED}"


def test_executors_that_end_after_their_proxy_are_not_the_cause() -> None:
    rm = Rm(2, executors=True)
    rm.ask("ada")
    serve(rm, "slice-0", 1)
    rm.cut("ada")
    rm.said.clear()
    end(rm, "slice-0", 1)
    (lost,) = (event for event in events_of(rm.said) if isinstance(event, SliceUnplaced))
    assert lost.reason == f"its proxy is gone, and the executor of host 0 of slice-0 {KILLED}"


def test_a_worker_that_reports_on_executors_is_not_hung() -> None:
    rm = Rm(1, executors=True)
    rm.ask("ada")

    def pass_without_beats() -> None:
        rm.now += 20.0
        rm.do(m.Tick())

    for _ in range(3):
        pass_without_beats()
        serve(rm, "slice-0", 1)
    assert rm.placed("ada") == {0: ("slice-0", 1)}
    pass_without_beats()
    end(rm, "slice-0", 1)
    pass_without_beats()
    assert rm.placed("ada") == {0: ("slice-0", 2)}
    pass_without_beats()
    assert not rm.placed("ada"), "a worker that sends nothing is hung"


def test_a_host_that_dies_takes_the_executors_of_its_slice_and_a_spare_replaces_all() -> None:
    rm = Rm({TWO_HOSTS: 2}, spares=1, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    rm.said.clear()
    rm.end_worker(PAIR, 1)
    spare = "tpuv6e-2x4-1"
    assert rm.placed("ada") == {0: (spare, 2)}
    assert assigned(rm) == [(PAIR, 0, "", 0), (spare, 0, "ada", 2), (spare, 1, "ada", 2)]


# ---- after a restart


def test_executors_outlive_a_restart_and_nobody_is_assigned_anything_before_its_end() -> None:
    rm = Rm(2, executors=True)
    rm.ask("ada")
    serve(rm, "slice-0", 1)
    rm = rm.restarted()
    rm.join("slice-0")
    rm.join("slice-1")
    serve(rm, "slice-0", 1)
    assert rm.state == "recovering"
    assert assigned(rm) == []
    rm.come_back("ada", (0, "slice-0", 1))
    assert rm.state == "serving"
    assert rm.heard("ada", m.NotifyExecutors)
    assert sorted(assigned(rm)) == [("slice-0", 0, "ada", 1), ("slice-1", 0, "", 0)]


def test_an_executor_that_ended_during_a_restart_costs_its_holder_the_slice() -> None:
    rm = Rm(1, executors=True)
    rm.ask("ada")
    rm = rm.restarted()
    rm.join("slice-0")
    end(rm, "slice-0", 1)
    rm.come_back("ada", (0, "slice-0", 1))
    assert rm.placed("ada") == {0: ("slice-0", 2)}


def test_without_the_state_a_claim_that_comes_too_late_finds_its_executors_ended() -> None:
    rm = Rm({SMALL: 2}, executors=True, state_lost=True, ready=False)
    rm.welcomed = {"slice-0/0/1": 5, "slice-1/0/1": 5}
    rm.join("slice-0")
    rm.join("slice-1")
    late = rm.now * 1000
    rm.after(20.0)
    assert rm.state == "serving"
    assert sorted(assigned(rm)) == [("slice-0", 0, "", 0), ("slice-1", 0, "", 0)]
    rm.asked["ada"] = m.TenantAsked(
        request=_request(), incarnation="ada/1", running=True, last_generation=int(late)
    )
    rm.come_back("ada", (0, "slice-0", int(late)))
    # It is adopted, and gets a slice with another generation.
    assert rm.heard("ada", m.NotifyUnplaced)
    ((slice_id, generation),) = rm.placed("ada").values()
    assert generation > late
    assert assigned(rm) == [(slice_id, 0, "ada", generation)]


def _request() -> Any:
    rm = Rm(1)
    rm.ask("ada")
    return rm.asked["ada"].request
