"""What chaos does, from a seed and a clock that is passed in."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.disruptions import (
    Chaos,
    ChaosOptions,
    Kind,
    SliceView,
    Strike,
    moments,
)

KINDS: tuple[Kind, ...] = ("kill", "hang", "proxy")


def views(count: int, tenants: int = 1, down: frozenset[str] = frozenset()) -> list[SliceView]:
    """Slices, each held by one of the tenants, in turn."""
    return [
        SliceView(
            id=f"slice-{number}",
            is_up=f"slice-{number}" not in down,
            tenant=f"tenant-{number % tenants}" if tenants else None,
            virtual_index=number // tenants if tenants else None,
        )
        for number in range(count)
    ]


def strikes(options: ChaosOptions, count: int, slices: list[SliceView]) -> list[Strike]:
    """What so many moments do, each in time."""
    chaos = Chaos(options)
    found = [chaos.strike(chaos.next.at_s, slices) for _ in range(count)]
    done = [strike for strike in found if strike is not None]
    assert len(done) + chaos.passed_over == count
    return done


some_options = st.builds(
    ChaosOptions,
    mtbf_s=st.floats(0.01, 1e4),
    down_for_s=st.floats(0.0, 3600.0),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3).map(tuple),
    slices_at_once=st.integers(1, 4),
    only_held=st.booleans(),
    seed=st.integers(),
)


@given(some_options, st.integers(0, 5), st.integers(0, 2))
def test_the_same_seed_does_the_same(options: ChaosOptions, count: int, tenants: int) -> None:
    slices = views(count, tenants)
    assert strikes(options, 50, slices) == strikes(options, 50, list(reversed(slices)))


@given(some_options, st.integers(0, 6))
def test_no_more_slices_are_down_than_may_be(options: ChaosOptions, count: int) -> None:
    chaos = Chaos(options)
    down_until: dict[str, float] = {}
    for _ in range(100):
        now = chaos.next.at_s
        # A slice whose hold is over takes a while to be up.
        slow = frozenset(n for n, until in down_until.items() if until <= now < until + 0.5)
        strike = chaos.strike(now, views(count, down=slow))
        if strike is None or strike.slice_id is None:
            continue
        down = {name for name, until in down_until.items() if until + 0.5 > now}
        assert strike.slice_id not in down
        assert len(down) < options.slices_at_once
        down_until[strike.slice_id] = now + options.down_for_s
        if now + options.down_for_s > now:
            assert strike.slice_id in chaos.held(now)
        assert strike.slice_id not in chaos.held(now + options.down_for_s)


@pytest.mark.parametrize("mtbf_s", [0.5, 30.0])
def test_the_mean_time_between_moments_is_the_mtbf(mtbf_s: float) -> None:
    for seed in range(5):
        options = ChaosOptions(mtbf_s=mtbf_s, kinds=KINDS, seed=seed)
        found = list(itertools.islice(moments(options), 4000))
        # The mean of so many has a standard deviation of 1/63 of it.
        assert found[-1].at_s / len(found) == pytest.approx(mtbf_s, rel=0.1)
        assert all(a.at_s < b.at_s for a, b in itertools.pairwise(found))
        for kind in KINDS:
            assert sum(m.kind == kind for m in found) == pytest.approx(4000 / 3, rel=0.15)


def test_time_while_nothing_may_fail_does_not_count() -> None:
    options = ChaosOptions(mtbf_s=1.0, down_for_s=9.0, seed=3)
    done = strikes(options, 20_000, views(3))
    times = [strike.at_s for strike in done]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) >= 9.0
    assert sum(gaps) / len(gaps) == pytest.approx(10.0, rel=0.05)


def test_all_slices_and_tenants_get_their_share() -> None:
    options = ChaosOptions(mtbf_s=10.0, down_for_s=0.1, kinds=("kill", "proxy"), seed=1)
    done = strikes(options, 3000, views(4, tenants=2))
    for number in range(4):
        mine = [s for s in done if s.slice_id == f"slice-{number}"]
        assert len(mine) == pytest.approx(375, rel=0.25)
        assert {(s.tenant, s.virtual_index) for s in mine} == {
            (f"tenant-{number % 2}", number // 2)
        }
    for tenant in ("tenant-0", "tenant-1"):
        proxies = [s for s in done if s.slice_id is None and s.tenant == tenant]
        assert len(proxies) == pytest.approx(750, rel=0.25)


def test_unheld_slices_are_left_alone_unless_named() -> None:
    free = views(2, tenants=0)
    assert strikes(ChaosOptions(seed=1), 20, free) == []
    assert strikes(ChaosOptions(kinds=("proxy",), only_held=False), 20, free) == []
    [*done] = strikes(ChaosOptions(only_held=False, seed=1), 20, free)
    assert done
    assert all(strike.tenant is None for strike in done)
    held = [dataclasses.replace(free[0], tenant="a", virtual_index=0), free[1]]
    assert {s.slice_id for s in strikes(ChaosOptions(), 20, held)} == {"slice-0"}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("--mtbf", {"mtbf_s": 0.0}),
        ("--mtbf", {"mtbf_s": float("inf")}),
        ("--down-for", {"down_for_s": -1.0}),
        ("--down-for", {"down_for_s": 3601.0}),
        ("--kinds", {"kinds": ()}),
        ("--kinds", {"kinds": ("kill", "maim")}),
        ("--slices-at-once", {"slices_at_once": 0}),
    ],
)
def test_what_is_wrong_is_refused(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChaosOptions(**values)
    assert caught.value.field == field
