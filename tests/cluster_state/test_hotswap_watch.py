"""Which phases a hotswap had, from made-up events and a made-up clock."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.cluster_state.hotswap_watch import PHASES, Crew, HotswapWatch
from shared_pathways_service.manifests.hotswap_jobset import HIGH, LOW, hotswap_jobset
from tests.cluster_state.objects import pod

HIGHER, LOWER = Crew(name="high", pods=2), Crew(name="low", pods=1)


def node(name: str, pool: str, *, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"cloud.google.com/gke-nodepool": pool}},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def of(crew: str, name: str, where: str, *, ready: bool = True, **more: Any) -> dict[str, Any]:
    labels = {"jobset.sigs.k8s.io/jobset-name": crew}
    return pod(name, ready=ready, node=where, labels=labels, **more)


def watching() -> HotswapWatch:
    seen = HotswapWatch(HIGHER, LOWER)
    for number in range(3):
        seen.take_node(node(f"n{number}", f"p{number}"), 0)
    seen.take_pod(of("high", "h0", "n0"), 0)
    seen.take_pod(of("high", "h1", "n1"), 0)
    seen.take_pod(of("low", "l0", "n2"), 0)
    seen.take_pod(of("other", "o", "n2"), 0)
    return seen


def test_a_crew_is_all_pods_of_its_jobset() -> None:
    assert Crew.of(hotswap_jobset(HIGH)) == Crew(name="high-jax-trillium", pods=8)
    assert Crew.of(hotswap_jobset(LOW)) == Crew(name="low-jax-trillium", pods=4)


def test_a_drain_and_the_return() -> None:
    seen = watching()
    assert seen.is_ready("high")
    assert seen.is_ready("low")
    assert seen.pools_of("high") == ["p0", "p1"]
    assert not seen.moments
    seen.disrupted(10)
    seen.take_pod(of("high", "h0", "n0", deleted=True), 11)
    seen.take_pod(of("high", "h0", "n0"), 12, gone=True)
    seen.take_pod(of("high", "h1", "n1"), 13, gone=True)
    seen.take_pod(of("high", "h2", "", ready=False), 14)
    seen.take_pod(of("high", "h3", "n1", ready=False), 14)
    seen.take_pod(of("low", "l0", "n2", deleted=True), 15)
    seen.take_pod(of("low", "l0", "n2"), 16, gone=True)
    seen.take_pod(of("low", "l1", "", ready=False), 16)
    seen.take_pod(of("high", "h2", "n2", ready=False), 17)
    seen.take_pod(of("high", "h2", "n2"), 18)
    assert "ready" not in seen.moments
    seen.take_pod(of("high", "h3", "n1"), 19)
    seen.restored(30)
    seen.take_pod(of("low", "l1", "n0", ready=False), 31)
    seen.take_pod(of("low", "l1", "n0"), 32)
    assert seen.moments == {
        "disrupted": 10,
        "lost": 11,
        "ended": 13,
        "created": 14,
        "preempted": 15,
        "cleared": 16,
        "bound": 17,
        "ready": 19,
        "restored": 30,
        "low_bound": 31,
        "low_ready": 32,
    }
    assert seen.moments.keys() <= PHASES.keys()
    assert seen.seconds("ready", "disrupted") == 9
    assert seen.seconds("not_ready", "disrupted") is None
    assert seen.pools_of("high") == ["p1", "p2"]
    assert not seen.shared


def test_a_vanished_node_is_distinguished_from_an_irrelevant_one() -> None:
    seen = watching()
    seen.disrupted(1)
    seen.take_node(node("n2", "p2", ready=False), 2)
    assert "not_ready" not in seen.moments
    seen.take_node(node("n1", "p1", ready=False), 3)
    assert seen.moments["not_ready"] == 3
    assert seen.broken_pools() == ["p1"]
    # Where it was counts, also when it has left.
    seen.take_pod(of("high", "h1", "n1"), 4, gone=True)
    assert seen.broken_pools() == ["p1"]
    seen.take_node(node("n1", "p1"), 5)
    assert seen.broken_pools() == []


def test_a_node_whose_pods_are_seen_to_go_first() -> None:
    seen = watching()
    seen.begun()
    seen.take_pod(of("high", "h1", "n1"), 4, gone=True)
    seen.take_pod(of("high", "h2", "", ready=False), 5)
    assert seen.broken_pools() == []
    seen.take_node(node("n1", "p1", ready=False), 6)
    assert seen.broken_pools() == ["p1"]
    assert seen.moments == {"disrupted": 4, "lost": 4, "created": 5, "not_ready": 6}


def test_pods_that_come_to_a_node_are_told_from_those_that_were_there() -> None:
    seen = watching()
    seen.begun()

    def newcomers(*nodes: str) -> list[str]:
        return [found["metadata"]["name"] for found in seen.newcomers(nodes)]

    assert newcomers("n0", "n1", "n2") == []
    seen.take_pod(of("high", "h2", "n1", ready=False), 5)
    seen.take_pod(of("low", "l1", "n0", ready=False), 5)
    seen.take_pod(of("other", "o1", "n1", ready=False), 5)
    assert newcomers("n1", "n2") == ["h2"]
    assert newcomers("n0", "n1", "n2") == ["h2", "l1"]
    seen.take_pod(of("high", "h2", "n1", ready=False, deleted=True), 6)
    assert newcomers("n1", "n2") == []


def test_a_deleted_node_breaks_its_pool() -> None:
    seen = watching()
    seen.begun()
    seen.take_node(node("n3", "p1"), 3)
    seen.take_node(node("n1", "p1"), 4, gone=True)
    assert seen.broken_pools() == ["p1"]
    assert seen.nodes_of("p1") == ["n3"]
    assert seen.moments == {"disrupted": 4, "not_ready": 4}

    # A node that was drained may go.
    seen = watching()
    seen.disrupted(1)
    seen.take_pod(of("high", "h1", "n1"), 2, gone=True)
    seen.take_node(node("n1", "p1"), 3, gone=True)
    assert "not_ready" not in seen.moments


def test_what_somebody_else_does_begins_when_it_is_seen() -> None:
    seen = watching()
    seen.begun()
    # What the lower one does meanwhile is none of it.
    seen.take_pod(of("low", "l0", "n2", ready=False), 50)
    assert not seen.moments
    seen.take_pod(of("high", "h0", "n0", deleted=True), 100)
    assert seen.moments == {"disrupted": 100, "lost": 100}
    seen.take_node(node("n0", "p0", ready=False), 101)
    assert seen.seconds("not_ready", "disrupted") == 1

    seen = watching()
    seen.begun()
    seen.take_node(node("n0", "p0", ready=False), 100)
    seen.take_pod(of("high", "h0", "n0", deleted=True), 105)
    assert seen.moments == {"disrupted": 100, "not_ready": 100, "lost": 105}


def test_a_pool_with_pods_of_both_is_remembered() -> None:
    seen = watching()
    # One that has ended takes no room.
    seen.take_pod(of("low", "done", "n1", ready=False, phase="Succeeded"), 1)
    assert not seen.shared
    seen.take_pod(of("low", "l1", "n1", deleted=True), 1)
    seen.take_pod(of("low", "l1", "n1"), 2, gone=True)
    assert seen.shared == {"p1": "h1 and l1"}


def test_a_crew_that_stays_was_never_lost() -> None:
    seen = watching()
    seen.disrupted(1)
    seen.restored(2)
    assert "preempted" not in seen.moments
    assert seen.moments["low_ready"] == 2
