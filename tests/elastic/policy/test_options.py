"""Options: MaxText's names and defaults, and what is refused before anything is started."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.elastic.policy.options import Options, SliceRange
from shared_pathways_service.errors import InvalidRequestError


def test_names_and_defaults_are_maxtexts() -> None:
    options = Options()
    assert (options.elastic_timeout_seconds, options.elastic_max_retries) == (300, 10)
    assert (options.elastic_min_slice_count, options.checkpoint_period) == (-1, 100)
    assert options.slice_range(3) == SliceRange(least=3, most=3)
    assert options.slice_range(3).policy == "wait"


@pytest.mark.parametrize(
    ("given", "total", "wanted"),
    [
        ({"elastic_min_slice_count": 2}, 3, SliceRange(least=2, most=3)),
        ({"elastic_min_slice_count": 1, "elastic_max_slice_count": 2}, 3, (1, 2)),
        ({"elastic_max_slice_count": 2}, 3, (2, 2)),
        ({"slices": "2:3"}, 4, (2, 3)),
        ({"slices": "2"}, 4, (2, 2)),
    ],
)
def test_how_many_slices(given: dict[str, Any], total: int, wanted: Any) -> None:
    found = Options(**given).slice_range(total)
    assert found == (
        wanted if isinstance(wanted, SliceRange) else SliceRange(least=wanted[0], most=wanted[1])
    )
    assert found.policy == ("wait" if found.least == found.most else "shrink")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_name", "Not_A_Label"),
        ("run_name", ""),
        ("checkpoint_period", 0),
        ("elastic_max_retries", 0),
        ("elastic_min_slice_count", 0),
        ("elastic_min_slice_count", -2),
        ("elastic_max_slice_count", 0),
        ("elastic_enabled", "yes"),
        ("elastic_timeout_seconds", -1),
        ("elastic_timeout_seconds", float("nan")),
        ("poll_interval", 0),
        ("probe_timeout", float("inf")),
        ("batch", "halve"),
        ("snapshot_to", "disk"),
        ("snapshot_period", -1),
        ("slices", "3:2"),
        ("slices", "0:2"),
        ("slices", "two"),
        ("slices", ""),
        ("global_batch_size", 0),
        ("checkpoint_keep_period", 0),
        ("resume_from", -1),
        ("flap_limit", True),
    ],
)
def test_values_that_can_never_be_right(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Options(**{field: value})  # type: ignore[arg-type]
    assert raised.value.field == field
    assert raised.value.expected


def test_both_ways_to_say_how_many_are_one_too_many() -> None:
    with pytest.raises(InvalidRequestError, match="either it or elastic_min_slice_count"):
        Options(slices="2:3", elastic_min_slice_count=2)


@pytest.mark.parametrize(
    ("given", "total", "field"),
    [
        ({"elastic_min_slice_count": 4}, 3, "elastic_min_slice_count"),
        ({"elastic_max_slice_count": 4}, 3, "elastic_max_slice_count"),
        ({"slices": "2:4"}, 3, "slices"),
        (
            {"elastic_min_slice_count": 3, "elastic_max_slice_count": 2},
            3,
            "elastic_min_slice_count",
        ),
        ({"elastic_min_slice_count": 2, "global_batch_size": 8}, 3, "global_batch_size"),
        ({"batch": "scale", "global_batch_size": 8, "slices": "2:3"}, 3, "global_batch_size"),
        ({"snapshot_period": 1, "snapshot_to": "peer", "slices": "1:3"}, 3, "snapshot_to"),
    ],
)
def test_what_does_not_fit_the_slices(given: dict[str, Any], total: int, field: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Options(**given).slice_range(total)
    assert raised.value.field == field


@given(
    size=st.integers(1, 200),
    least=st.integers(1, 5),
    more=st.integers(0, 4),
    rule=st.sampled_from(["keep", "scale"]),
)
def test_a_batch_that_is_let_in_has_a_whole_size_on_every_count(
    size: int, least: int, more: int, rule: Any
) -> None:
    most = least + more
    options = Options(slices=f"{least}:{most}", global_batch_size=size, batch=rule)
    try:
        allowed = options.slice_range(most)
    except InvalidRequestError:
        bad = [
            c for c in range(least, most + 1) if (size % c if rule == "keep" else size * c % most)
        ]
        assert bad
        return
    for count in allowed.counts:
        found = options.batch_size(count, most)
        assert found * most == size * count if rule == "scale" else found == size
        assert rule == "scale" or found % count == 0


def test_a_batch_of_ones_own_needs_no_size() -> None:
    with pytest.raises(InvalidRequestError, match="global_batch_size"):
        Options().batch_size(2, 3)
