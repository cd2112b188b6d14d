from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.core.kubernetes.log_lines import LogEvent, LogKind, parse_line
from shared_pathways_service.core.kubernetes.placement import (
    TAKEN_AFTER_S,
    PlacementFollower,
    PlacementNews,
)

KIND = "tpuv6e:2x2"


def hear(follower: PlacementFollower, *lines: str, now: float = 0.0) -> list[PlacementNews]:
    news = []
    for line in lines:
        event = parse_line(line)
        assert event is not None, line
        news += follower.hear(event, now)
    return news


def kinds(news: list[PlacementNews]) -> list[str]:
    return [item.kind for item in news]


def test_the_real_proxys_log() -> None:
    follower = PlacementFollower((KIND, KIND))
    news = hear(
        follower,
        "Pathways Proxy serving on [::]:29000",
        "Signaling to RM pw:29001",
        "Waiting for placement",
        "Transition slice 0 unplaced -> placed",
        "Transition slice 1 unplaced -> placed",
        "Transition slice 1 placed -> unplaced",
        "Transition slice 1 unplaced -> placed",
    )
    assert kinds(news) == [
        "proxy.serving",
        "slice.placed",
        "slice.placed",
        "tenant.running",
        "slice.unplaced",
        "slice.placed",
    ]
    assert news[1].data == {
        "virtual_index": 0,
        "slice_id": "",
        "generation": 1,
        "instance_type": KIND,
    }
    assert news[3].data == {"placed": 2, "wanted": 2}
    assert news[4].data["generation"] == news[2].data["generation"]
    assert news[5].data["generation"] == 3


def test_our_proxys_log() -> None:
    follower = PlacementFollower((KIND, KIND), num_elastic_slices=1)
    queued = "Waiting for placement at position 1: all are taken (held by a@b: 2 x T)"
    news = hear(
        follower,
        queued,
        queued,
        "Transition slice 1 unplaced -> placed (placement on slice-4, generation 40)",
        "All placements done: 1 of 2 slices placed",
        "All placements done: 1 of 2 slices placed",
        "Transition slice 1 placed -> unplaced: a worker died",
    )
    assert kinds(news) == ["tenant.queued", "slice.placed", "tenant.running", "slice.unplaced"]
    assert news[0].data == {"position": 1, "holders": "a@b: 2 x T"}
    assert news[0].reason == "all are taken"
    assert (news[1].data["slice_id"], news[1].data["generation"]) == ("slice-4", 40)
    assert news[3].reason == "a worker died"


def test_elastic_slices_are_not_waited_for() -> None:
    follower = PlacementFollower((KIND, KIND), num_elastic_slices=1)
    assert kinds(hear(follower, "Transition slice 1 unplaced -> placed")) == [
        "slice.placed",
        "tenant.running",
    ]


def test_slices_known_by_names_are_counted_in_turn() -> None:
    follower = PlacementFollower((KIND, KIND))
    lines = [f"Transition slice {name} unplaced -> placed" for name in ("a", "b", "c")]
    news = hear(follower, *lines, lines[0])
    assert [n.data["virtual_index"] for n in news if n.kind == "slice.placed"] == [0, 1]


def test_a_repeated_line_is_no_news_and_a_missed_one_is_made_up_for() -> None:
    follower = PlacementFollower((KIND,))
    first = "Transition slice 0 unplaced -> placed (placement on slice-1, generation 5)"
    assert kinds(hear(follower, first, first)) == ["slice.placed", "tenant.running"]
    later = hear(
        follower, "Transition slice 0 unplaced -> placed (placement on slice-2, generation 9)"
    )
    assert kinds(later) == ["slice.unplaced", "slice.placed"]
    assert later[0].data["slice_id"] == "slice-1"


def test_a_refusal_is_told_once_and_only_before_programs_run() -> None:
    follower = PlacementFollower((KIND,))
    news = hear(follower, "FAILED_PRECONDITION: no such type", "FAILED_PRECONDITION: again")
    assert kinds(news) == ["tenant.refused"]
    assert news[0].data == {"kind": "failed_precondition", "message": "no such type"}
    running = PlacementFollower((KIND,))
    hear(running, "Transition slice 0 unplaced -> placed")
    assert hear(running, "Execute failed: FAILED_PRECONDITION: a user's") == []


def test_without_placement_for_long_slices_are_taken() -> None:
    follower = PlacementFollower((KIND,))
    assert follower.tick(1e9) == []
    hear(follower, "Signaling to RM pw:29001", now=100.0)
    hear(follower, "Waiting for placement", now=105.0)
    assert follower.taken_at == 100.0 + TAKEN_AFTER_S
    assert follower.tick(109.9) == []
    [news] = follower.tick(110.0)
    assert news.kind == "tenant.queued"
    assert follower.tick(200.0) == []
    assert kinds(hear(follower, "Transition slice 0 unplaced -> placed", now=201.0)) == [
        "slice.placed",
        "tenant.running",
    ]
    assert follower.taken_at is None


EVENTS = st.builds(
    LogEvent,
    kind=st.sampled_from(LogKind),
    text=st.just("x"),
    count=st.integers(0, 4),
    wanted=st.integers(0, 4),
    index=st.none() | st.integers(0, 4),
    slice_name=st.sampled_from(["a", "b", "c", "d", "e"]),
    generation=st.none() | st.integers(1, 5),
)


@given(
    events=st.lists(EVENTS, max_size=40),
    elastic=st.integers(0, 2),
    step=st.floats(0, 20),
)
def test_whatever_the_log_says_the_news_make_sense(
    events: list[LogEvent], elastic: int, step: float
) -> None:
    follower = PlacementFollower((KIND,) * 3, num_elastic_slices=elastic)
    placed: dict[object, object] = {}
    counts: dict[str, int] = {}
    now = 0.0
    for event in events:
        now += step
        for news in [*follower.hear(event, now), *follower.tick(now)]:
            counts[news.kind] = counts.get(news.kind, 0) + 1
            index, generation = news.data.get("virtual_index"), news.data.get("generation")
            if news.kind == "slice.placed":
                assert index not in placed
                assert index in (0, 1, 2)
                placed[index] = generation
            elif news.kind == "slice.unplaced":
                assert placed.pop(index) == generation
                assert news.reason
        assert follower.placed == len(placed)
        assert follower.taken_at is None or follower.taken_at > now
    for once in ("proxy.serving", "tenant.running", "tenant.refused"):
        assert counts.get(once, 0) <= 1
    assert follower.running == bool(counts.get("tenant.running"))
