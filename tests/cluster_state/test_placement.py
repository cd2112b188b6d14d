from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.cluster_state.claims import Shortage
from shared_pathways_service.cluster_state.log_lines import LogEvent, LogKind, parse_line
from shared_pathways_service.cluster_state.placement import PlacementFollower
from shared_pathways_service.events import Event

KIND = "tpuv6e:2x2"
SHORTAGE = Shortage(
    wanted={KIND: 2}, free={KIND: 1}, holders=("ada@h: 1 x T",), reason="ada holds 1 of 2"
)


def hear(follower: PlacementFollower, *lines: str) -> list[Event]:
    news = []
    for line in lines:
        event = parse_line(line)
        assert event is not None, line
        news += follower.take_line(event)
    return news


def kinds(news: list[Event]) -> list[str]:
    return [item.kind for item in news]


def test_the_real_proxys_log() -> None:
    follower = PlacementFollower((KIND, KIND))
    news = hear(
        follower,
        "I1208 20:10:04.992524  7 proxy_server.cc:125] IFRT proxy server started with status OK",
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


def test_what_only_our_proxy_logs() -> None:
    follower = PlacementFollower((KIND, KIND), elastic_slices=1)
    news = hear(
        follower,
        "Transition slice 1 unplaced -> placed (placement on slice-4, generation 40)",
        "All placements done: 1 of 2 slices placed",
        "All placements done: 1 of 2 slices placed",
        "Transition slice 1 placed -> unplaced: a worker died",
    )
    assert kinds(news) == ["slice.placed", "tenant.running", "slice.unplaced"]
    assert (news[0].data["slice_id"], news[0].data["generation"]) == ("slice-4", 40)
    assert news[2].reason == "a worker died"


def test_elastic_slices_are_not_waited_for() -> None:
    follower = PlacementFollower((KIND, KIND), elastic_slices=1)
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


def test_a_refusal_is_reported_once_and_only_before_programs_run() -> None:
    follower = PlacementFollower((KIND,))
    news = hear(follower, "FAILED_PRECONDITION: no such type", "FAILED_PRECONDITION: again")
    assert kinds(news) == ["tenant.refused"]
    assert news[0].data == {"kind": "failed_precondition", "message": "no such type"}
    running = PlacementFollower((KIND,))
    hear(running, "Transition slice 0 unplaced -> placed")
    assert hear(running, "Execute failed: FAILED_PRECONDITION: a user's") == []


def test_a_slice_that_is_placed_slowly_is_not_taken() -> None:
    follower = PlacementFollower((KIND,))
    assert hear(follower, "Signaling to RM pw:29001", "Waiting for placement") == []
    for _ in range(1000):
        assert follower.take_shortage(None) == []
    assert kinds(hear(follower, "Transition slice 0 unplaced -> placed")) == [
        "slice.placed",
        "tenant.running",
    ]
    assert not follower.waiting


def test_a_shortage_is_a_refusal_where_there_is_no_queue() -> None:
    follower = PlacementFollower((KIND, KIND))
    assert follower.take_shortage(SHORTAGE) == [], "the proxy has not asked yet"
    follower = PlacementFollower((KIND, KIND))
    hear(follower, "Signaling to RM pw:29001")
    [news] = follower.take_shortage(SHORTAGE)
    assert news.kind == "tenant.refused"
    assert news.data == {
        "kind": "slices_taken",
        "message": "ada holds 1 of 2",
        "wanted": '{"tpuv6e:2x2": 2}',
        "free": '{"tpuv6e:2x2": 1}',
        "holders": "ada@h: 1 x T",
    }
    assert not follower.waiting
    assert follower.take_shortage(dataclasses.replace(SHORTAGE, reason="another")) == []


def test_a_shortage_is_waited_for_where_there_is_a_queue() -> None:
    follower = PlacementFollower((KIND, KIND), queues=True)
    hear(follower, "Signaling to RM pw:29001")
    [news] = follower.take_shortage(SHORTAGE)
    assert (news.kind, news.reason) == ("tenant.queued", "ada holds 1 of 2")
    assert news.data["holders"] == "ada@h: 1 x T"
    assert follower.take_shortage(SHORTAGE) == [], "no news"
    assert kinds(follower.take_shortage(None)) == ["tenant.dequeued"]
    assert follower.take_shortage(None) == [], "no news"
    assert kinds(follower.take_shortage(SHORTAGE)) == ["tenant.queued"]
    hear(follower, *(f"Transition slice {index} unplaced -> placed" for index in range(2)))
    assert follower.take_shortage(dataclasses.replace(SHORTAGE, reason="late")) == []


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
    events=st.lists(EVENTS | st.sampled_from([None, SHORTAGE]), max_size=40),
    elastic=st.integers(0, 2),
    queues=st.booleans(),
)
def test_whatever_the_log_says_the_news_make_sense(
    events: list[LogEvent | Shortage | None], elastic: int, queues: bool
) -> None:
    follower = PlacementFollower((KIND,) * 3, elastic_slices=elastic, queues=queues)
    placed: dict[object, object] = {}
    counts: dict[str, int] = {}
    for event in events:
        if isinstance(event, LogEvent):
            told = follower.take_line(event)
        else:
            told = follower.take_shortage(event)
        for news in told:
            counts[news.kind] = counts.get(news.kind, 0) + 1
            index, generation = news.data.get("virtual_index"), news.data.get("generation")
            if news.kind == "slice.placed":
                assert index not in placed
                assert index in (0, 1, 2)
                placed[index] = generation
            elif news.kind == "tenant.dequeued":
                assert queues
                assert counts["tenant.dequeued"] <= counts["tenant.queued"]
            elif news.kind == "slice.unplaced":
                assert placed.pop(index) == generation
                assert news.reason
        assert follower.placed == len(placed)
        assert not (follower.waiting and (follower.running or counts.get("tenant.refused")))
    for once in ("proxy.serving", "tenant.running", "tenant.refused"):
        assert counts.get(once, 0) <= 1
    assert follower.running == bool(counts.get("tenant.running"))
