"""Workers come, beat, hang and die; slices are ready and lost by that."""

from __future__ import annotations

import pytest

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.states import SliceState
from tests.scheduling.harness import OTHER, SMALL, TWO_HOSTS, Rm


def test_a_slice_is_ready_when_the_workers_of_all_its_hosts_are() -> None:
    rm = Rm({TWO_HOSTS: 1}, ready=False)
    rm.join("s", 1, kind=TWO_HOSTS)
    assert rm.slice("s").state is SliceState.STARTING
    rm.join("s", 0, kind=TWO_HOSTS)
    assert rm.slice("s").state is SliceState.READY
    assert rm.announced("slice.starting", "slice.ready") == ["slice.starting", "slice.ready"]
    assert [worker.host_index for worker in rm.slice("s").workers] == [0, 1]


def test_the_death_of_one_worker_is_the_death_of_its_slice_at_once() -> None:
    rm = Rm({TWO_HOSTS: 1})
    slice_id = "tpuv6e-2x4-0"
    rm.ask("ada", (TWO_HOSTS,))
    rm.said.clear()
    rm.end_worker(slice_id, 1)
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert (lost.slice_id, lost.generation) == (slice_id, 1)
    assert "worker 1 of tpuv6e-2x4-0 is gone" in lost.reason
    assert "its process ended" in lost.reason
    assert rm.announced() == ["slice.lost", "slice.unplaced"]
    rm.join(slice_id, 1, kind=TWO_HOSTS, life="2")
    assert rm.placed("ada") == {0: (slice_id, 2)}


def test_a_spare_takes_the_place_of_all_hosts_of_a_slice() -> None:
    rm = Rm({TWO_HOSTS: 3}, spares=1)
    rm.ask("ada", (TWO_HOSTS, TWO_HOSTS))
    lost, kept, spare = (f"tpuv6e-2x4-{index}" for index in range(3))
    rm.end_worker(lost, 1)
    assert rm.placed("ada") == {0: (spare, 3), 1: (kept, 2)}
    # The lost slice is a spare once its last host is there again, and not before.
    rm.end_worker(kept, 0)
    assert rm.placed("ada") == {0: (spare, 3)}
    rm.join(lost, 1, kind=TWO_HOSTS, life="2")
    assert rm.placed("ada") == {0: (spare, 3), 1: (lost, 4)}


def test_a_worker_without_a_beat_is_hung_at_the_deadline_and_not_before() -> None:
    rm = Rm(1, hung_after_s=30.0)
    rm.ask("ada")
    rm.now += 20.0
    rm.beat()
    rm.now += 29.9
    assert rm.core.next_deadline() == pytest.approx(1e9 + 50.0)
    rm.said.clear()
    rm.do(m.Tick())
    assert not rm.said
    rm.now += 0.2
    rm.do(m.Tick())
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert "worker 0 of slice-0 is hung: no beat for 30 s" in lost.reason
    (refused,) = [one for one in rm.said if isinstance(one, m.RefuseWorker)]
    assert refused.incarnation == "slice-0/0/1"
    assert rm.slice("slice-0").state is SliceState.LOST


def test_beats_of_the_hung_and_the_unknown_are_passed_over() -> None:
    rm = Rm(1)
    rm.now += 31.0
    rm.do(m.Tick())
    for incarnation in ("slice-0/0/1", "nobody"):
        beat = m.WorkerBeat(slice_id="slice-0", host_index=0, incarnation=incarnation)
        assert rm.do(beat) == []
    assert rm.do(m.WorkerBeat(slice_id="other", host_index=7, incarnation="x")) == []
    assert rm.slice("slice-0").state is SliceState.LOST


def test_a_newer_incarnation_replaces_the_older_and_the_slice_was_lost_in_between() -> None:
    rm = Rm(1)
    rm.ask("ada")
    rm.said.clear()
    rm.join("slice-0", life="2")
    (refused,) = [one for one in rm.said if isinstance(one, m.RefuseWorker)]
    assert refused.incarnation == "slice-0/0/1"
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    (placed,) = rm.heard("ada", m.NotifyPlaced)
    assert (lost.generation, placed.generation) == (1, 2)
    assert rm.said.index(lost) < rm.said.index(placed)
    rm.said.clear()
    rm.end_worker("slice-0", life="1")
    assert not rm.said, "the end of a replaced worker is no news"


def test_a_worker_that_speaks_again_has_lost_its_slice_as_if_its_end_had_been_seen() -> None:
    rm = Rm(1)
    rm.ask("ada")
    rm.said.clear()
    rm.join("slice-0")
    assert [one.generation for one in rm.heard("ada", m.NotifyUnplaced)] == [1]
    assert not [one for one in rm.said if isinstance(one, m.RefuseWorker)]
    assert rm.placed("ada") == {0: ("slice-0", 2)}


def test_slice_ids_need_not_be_known_beforehand_up_to_the_configured_count() -> None:
    rm = Rm(2, ready=False)
    rm.join("any-name")
    rm.join("other-name")
    (refused,) = rm.join("one-too-many")
    assert isinstance(refused, m.RefuseWorker)
    assert "all 2 slices" in refused.reason


def test_a_slice_under_a_new_name_takes_the_place_of_one_that_is_gone() -> None:
    rm = Rm(2)
    rm.end_worker("slice-0")
    rm.join("slice-9")
    assert [one.id for one in rm.core.status(rm.now).slices] == ["slice-1", "slice-9"]


def test_workers_that_do_not_fit_are_refused_with_the_reason() -> None:
    rm = Rm({SMALL: 1, TWO_HOSTS: 1})
    (refused,) = rm.join("s", kind=OTHER)
    assert isinstance(refused, m.RefuseWorker)
    assert "tpuv6e:2x2, tpuv6e:2x4" in refused.reason
    (refused,) = rm.join("slice-0", 1)
    assert isinstance(refused, m.RefuseWorker)
    assert "1 host" in refused.reason
    (refused,) = rm.join("slice-0", 0, kind=TWO_HOSTS)
    assert isinstance(refused, m.RefuseWorker)
    assert "slice-0 is a slice of tpuv6e:2x2" in refused.reason


def test_slices_are_granted_in_the_natural_order_of_their_names() -> None:
    rm = Rm(12, ready=False)
    for index in (10, 2, 0, 1, 11, 3):
        rm.join(f"slice-{index}")
    rm.ask("ada", 4)
    assert rm.on("ada") == ["slice-0", "slice-1", "slice-2", "slice-3"]


@pytest.mark.parametrize(
    "wrong",
    [{"slices": {}}, {"slices": {SMALL: 1}, "spares": 1}, {"slices": {SMALL: 1}, "spares": -1}],
)
def test_a_configuration_that_grants_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"slices|spares"):
        RmConfig(**wrong)  # type: ignore[arg-type]


def test_a_slice_comes_back_after_another_one_had_taken_its_place() -> None:
    rm = Rm(1, ready=False)
    for slice_id in ("a", "b", "a"):
        rm.join(slice_id, life=str(len(rm.welcomed)))
        assert rm.slice(slice_id).state is SliceState.READY
        rm.end_worker(slice_id, life=str(len(rm.welcomed) - 1))
    rm.join("a", life="3")
    rm.ask("ada")
    assert rm.on("ada") == ["a"]
