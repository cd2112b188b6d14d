"""The health of slices: their states, and how long one that flaps is left out."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shared_pathways_service.elastic.policy.options import Options
from shared_pathways_service.elastic.policy.slice_health import Health, SliceState, Transition

OPTIONS = Options(
    flap_limit=3,
    flap_window_seconds=100,
    flap_backoff_seconds=10,
    flap_backoff_most_seconds=60,
)


def states(moved: list[Transition]) -> list[tuple[int, str]]:
    return [(transition.slice, transition.state.value) for transition in moved]


def test_the_way_of_a_slice_down_and_back() -> None:
    health = Health([0, 1], OPTIONS)
    assert states(health.suspect([1], "an error")) == [(1, "suspect")]
    assert health.usable(0.0) == (0,)
    assert states(health.bad(1, 0.0, "no answer")) == [(1, "down")]
    assert health.bad(1, 1.0, "no answer") == []
    assert states(health.good(1)) == [(1, "returning")]
    assert health.good(1) == []
    assert health.usable(2.0) == (0, 1)
    assert states(health.join([0, 1])) == [(1, "active")]


def test_a_suspect_that_answers_was_none() -> None:
    health = Health([0], OPTIONS)
    health.suspect([0], "an error")
    assert states(health.good(0)) == [(0, "active")]
    assert health.usable(0.0) == (0,)


def test_a_slice_that_starts_is_not_usable_and_not_lost() -> None:
    health = Health([0, 1], OPTIONS)
    for now in range(5):
        assert states(health.starting(1, "it starts")) == [(1, "awaited")]
        assert health.starting(1, "it starts") == []
        assert health.usable(now) == (0,)
        assert states(health.good(1)) == [(1, "active")]
        assert health.usable(now) == (0, 1)
    # It does not come: that is a loss.
    health.starting(1, "it starts")
    assert states(health.bad(1, 5.0, "no answer")) == [(1, "down")]
    # What is down stays so until it answers.
    assert health.starting(1, "it starts") == []
    assert states(health.good(1)) == [(1, "returning")]


def test_a_lost_slice_whose_replacement_starts_counts_once() -> None:
    health = Health([0, 1], OPTIONS)
    for now in range(3):
        health.suspect([1], "an error")
        health.starting(1, "it starts")
        told = health.lost(1, now)
        health.good(1)
    assert [(one.state, one.left_out_s) for one in told] == [(SliceState.AWAITED, 10)]


def test_a_loss_that_is_reported_again_counts_once() -> None:
    # The barrier finds that all slices of an attempt were replaced. Then its error is judged:
    # meanwhile the replacement answers, or it does not yet, or it never does.
    for seen in ("good", "starting", "bad"):
        health = Health([0, 1], OPTIONS)
        told: list[Transition] = []
        for now in range(3):
            health.starting(1, "it starts")
            told += health.lost(1, now)
            if seen == "good":
                health.good(1)
            elif seen == "starting":
                health.starting(1, "it starts")
            else:
                told += health.bad(1, now, "no answer")
            told += health.lost(1, now)
            health.good(1)
            health.join([1])
        left_out = [one.left_out_s for one in told]
        assert [seconds for seconds in left_out if seconds] == [10], seen


def test_a_replacement_that_is_lost_as_well_counts_too() -> None:
    health = Health([0, 1], OPTIONS)
    assert health.starting(1, "it starts")
    assert health.lost(1, 0.0) == []
    assert health.good(1)
    # Training has not begun on it.
    assert health.starting(1, "it starts")
    [told] = health.bad(1, 1.0, "no answer")
    assert (told.state, told.left_out_s) == (SliceState.DOWN, 0)
    health.good(1)
    [told] = health.bad(1, 2.0, "no answer")
    assert (told.state, told.left_out_s) == (SliceState.DOWN, 10)


def lose(health: Health, index: int, now: float) -> float:
    [transition] = health.bad(index, now, "gone")
    health.good(index)
    return transition.left_out_s


def test_a_slice_that_flaps_is_left_out_for_a_growing_time() -> None:
    health = Health([0, 1], OPTIONS)
    assert [lose(health, 1, now) for now in (0, 1, 2, 3, 4, 5, 6)] == [0, 0, 10, 20, 40, 60, 60]
    assert health.usable(6.0) == (0,)
    assert health.usable(6.0, least=2) == (0, 1)
    assert health.usable(66.0) == (0, 1)
    # Calm for as long as losses count: it begins anew.
    assert lose(health, 1, 200.0) == 0


def test_a_loss_that_was_made_good_at_once_counts_too() -> None:
    health = Health([0, 1], OPTIONS)
    for now in (0.0, 1.0):
        assert health.lost(1, now) == []
        health.join([1])
    [told] = health.lost(1, 2.0)
    assert (told.state, told.left_out_s) == (SliceState.ACTIVE, 10)
    assert health.states[1] is SliceState.ACTIVE
    assert health.usable(2.0) == (0,)
    health.bad(0, 3.0, "gone")
    health.lost(0, 3.0)  # the same loss, told twice
    assert health.good(0)
    assert 0 in health.usable(3.0)


class Slices(RuleBasedStateMachine):
    """Whatever happens: what is usable answers, and nothing is left out without end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.health = Health(range(3), OPTIONS)
        self.down: set[int] = set()

    @rule(index=st.integers(0, 2), step=st.floats(0, 30))
    def is_bad(self, index: int, step: float) -> None:
        self.now += step
        self.health.bad(index, self.now, "gone")
        self.down.add(index)

    @rule(index=st.integers(0, 2))
    def is_good(self, index: int) -> None:
        self.health.good(index)
        self.down.discard(index)

    @rule(index=st.integers(0, 2))
    def starts(self, index: int) -> None:
        self.health.starting(index, "it starts")
        self.down.add(index)

    @rule(index=st.integers(0, 2))
    def joins(self, index: int) -> None:
        self.health.join([index])

    @invariant()
    def only_what_answers_is_used(self) -> None:
        assert not set(self.health.usable(self.now)) & self.down
        later = self.now + OPTIONS.flap_backoff_most_seconds
        assert set(self.health.usable(later)) == set(range(3)) - self.down

    @invariant()
    def no_more_that_flap_are_used_than_lack(self) -> None:
        calm = self.health.usable(self.now)
        for least in range(4):
            found = self.health.usable(self.now, least)
            assert set(calm) <= set(found)
            assert len(found) <= max(len(calm), least)


TestSlices = Slices.TestCase
TestSlices.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
