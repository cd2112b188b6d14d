"""Checks of the loop: wait, shrink and grow, budgets, callbacks, what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax
import numpy as np

from harness.elastic import example_training
from harness.elastic.example_training import GONE, STEPS, assert_same, options, slice_of, train
from shared_pathways_service import elastic
from shared_pathways_service.elastic.run_ledger import read_ledger
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.testing.faults import fail_at, flap, kill, on_event, revive
from tests.elastic.gate import DEADLINE_S
from tests.elastic.raised import raised_by
from tests.elastic.registry import check


@check
def nothing_fails(directory: Path) -> None:
    done = train(options(), directory=directory)
    assert done.attempts == [(0, 1, 2)], done
    assert len(done.examples()) == STEPS * 24
    assert [event.step for event in done.all("elastic.step")] == list(range(1, STEPS + 1))
    assert done.first("elastic.run.done").data["outcome"] == "done"
    assert [event.step for event in done.all("checkpoint.saved")] == [5, 10, 15, 20]
    # Two threads report events; each sink gets those of one thread in order.
    for of_saves in (True, False):
        written, heard = (
            [event.kind for event in events if (event.kind == "checkpoint.saved") is of_saves]
            for events in (read_ledger(directory), done.events)
        )
        assert written == heard


@check
def three_two_three_with_checkpoints(directory: Path) -> None:
    calm = train(options())
    done = train(options(), fail_at(12, 1, down_for=GONE), directory=directory, back_at=[14])
    assert [len(slices) for slices in done.attempts] == [3, 2, 3], done
    assert done.attempts[1] == (0, 2)
    assert done.examples() == calm.examples()
    assert_same(done.result, calm.result, exactly=False)
    restored = done.all("elastic.restored")
    assert [event.data["origin"] for event in restored] == ["initial", "checkpoint", "live"]
    assert restored[1].step == 10
    assert restored[2].data["lost_steps"] == 0
    assert done.kinds("slice.") == [
        "slice.suspect",
        "slice.down",
        "slice.returning",
        "slice.active",
    ]


@check
def three_two_three_with_snapshots(directory: Path) -> None:
    del directory
    calm = train(options())
    for place in ("client", "peer"):
        done = train(
            options(snapshot_period=4, snapshot_to=place),
            fail_at(11, 1, down_for=GONE),
            back_at=[13],
        )
        assert [len(slices) for slices in done.attempts] == [3, 2, 3]
        assert done.examples() == calm.examples()
        assert_same(done.result, calm.result, exactly=False)
        restored = done.all("elastic.restored")
        assert [event.data["origin"] for event in restored] == ["initial", "snapshot", "live"]
        assert restored[1].step == 8
        assert {event.data["where"] for event in done.all("snapshot.taken")} == {place}
        assert not done.all("snapshot.failed")


@check
def waiting_restores_the_newest_checkpoint_to_the_bit(directory: Path) -> None:
    wait = options(elastic_min_slice_count=-1)
    calm = train(wait)
    done = train(
        wait,
        fail_at(13, 2, down_for=GONE),
        on_event(revive(2), "elastic.wait.started"),
        directory=directory,
    )
    assert done.attempts == [(0, 1, 2), (0, 1, 2)], done
    assert done.examples() == calm.examples()
    assert_same(done.result, calm.result)
    assert done.all("elastic.restored")[1].data["origin"] == "checkpoint"
    # Back to 10 of the 13 that were told, the last of which may not have been waited for.
    assert done.all("elastic.restored")[1].step == 10
    assert done.all("elastic.restored")[1].data["lost_steps"] in {2, 3}
    assert done.kinds("elastic.wait") == ["elastic.wait.started", "elastic.wait.done"]


@check
def a_spare_takes_the_place_of_a_lost_slice(directory: Path) -> None:
    done = train(options(), fail_at(7, 0), directory=directory)
    assert done.attempts == [(0, 1, 2), (0, 1, 2)], done
    assert done.first("elastic.error").data["slices"] == "0"
    assert done.result["count"] == STEPS


@check
def two_slices_at_once(directory: Path) -> None:
    done = train(
        options(elastic_min_slice_count=1),
        fail_at(8, 0, down_for=GONE),
        fail_at(8, 2, down_for=GONE),
        directory=directory,
        back_at=[10],
    )
    assert done.attempts[:2] == [(0, 1, 2), (1,)]
    assert done.attempts[-1] == (0, 1, 2)
    assert done.result["count"] == STEPS


@check
def a_second_failure_during_recovery(directory: Path) -> None:
    done = train(
        options(elastic_min_slice_count=1),
        fail_at(8, 1, down_for=GONE),
        on_event(kill(2, down_for=GONE), "elastic.restored", 2),
        directory=directory,
    )
    assert done.attempts == [(0, 1, 2), (0, 2), (0,)], done
    assert done.result["count"] == STEPS
    assert len(done.examples()) == STEPS * 24


@check
def a_slice_that_returns_during_the_restore(directory: Path) -> None:
    done = train(
        options(),
        fail_at(8, 1, down_for=GONE),
        on_event(revive(1), "checkpoint.restoring"),
        directory=directory,
        back_at=[7],
    )
    assert done.attempts == [(0, 1, 2), (0, 2), (0, 1, 2)], done
    kinds = done.kinds()
    restoring = kinds.index("checkpoint.restoring")
    assert "slice.returning" in kinds[restoring:]
    assert done.result["count"] == STEPS
    assert sorted(done.used) == list(range(STEPS))


@check
def a_flapping_slice_is_left_out(directory: Path) -> None:
    done = train(
        options(flap_limit=2, flap_backoff_seconds=3600),
        *flap(1, [4, 8]),
        directory=directory,
    )
    assert done.attempts == [(0, 1, 2), (0, 1, 2), (0, 2)], done
    assert done.result["count"] == STEPS


@check
def a_flapping_slice_is_used_if_needed(directory: Path) -> None:
    done = train(
        options(elastic_min_slice_count=-1, flap_limit=1, flap_backoff_seconds=3600),
        *flap(1, [4, 8]),
        directory=directory,
    )
    assert done.attempts == [(0, 1, 2)] * 3, done


@check
def failures_have_a_budget(directory: Path) -> None:
    error = raised_by(
        elastic.ElasticRuntimeError,
        options(elastic_max_retries=2),
        fail_at(4, 1),
        fail_at(8, 2),
        directory=directory,
    )
    assert "Elastic attempt 2 failed" in str(error)
    assert isinstance(error.__cause__, jax.errors.JaxRuntimeError)
    kinds = {event.kind: event for event in read_ledger(directory)}
    assert kinds["elastic.run.done"].data["outcome"] == "failed"


@check
def growing_has_a_budget_of_its_own(directory: Path) -> None:
    done = train(
        options(elastic_max_scale_ups=0, elastic_max_retries=2),
        fail_at(4, 1, down_for=GONE),
        directory=directory,
        back_at=[6],
    )
    assert done.attempts == [(0, 1, 2), (0, 2)], done
    assert done.kinds("slice.")[-1] == "slice.returning"


@check
def the_last_snapshot_is_saved_when_training_ends_badly(directory: Path) -> None:
    chosen = options(
        elastic_min_slice_count=-1,
        elastic_timeout_seconds=0.3,
        snapshot_period=3,
        checkpoint_period=1000,
    )
    raised_by(
        elastic.ElasticRuntimeError, chosen, fail_at(8, 1, down_for=GONE), directory=directory
    )
    again = train(options(), directory=directory)
    assert again.first("elastic.restored").data["origin"] == "checkpoint"
    assert again.first("elastic.restored").step == 6
    assert_same(again.result, train(options()).result)


@check
def training_resumes_where_another_process_ended(directory: Path) -> None:
    train(options(), directory=directory, steps=12)
    done = train(options(), directory=directory)
    assert done.first("elastic.restored").step == 10
    assert_same(done.result, train(options()).result)
    # One that was picked, also after a failure: what is newer belongs to another history.
    earlier = train(options(resume_from=15), fail_at(17, 1), directory=directory)
    assert [event.step for event in earlier.all("elastic.restored")] == [15, 15]
    assert_same(earlier.result, done.result)


@check
def a_batch_that_scales_uses_each_example_once(directory: Path) -> None:
    done = train(
        options(batch="scale"),
        fail_at(9, 1, down_for=GONE),
        directory=directory,
        back_at=[11],
    )
    assert {len(numbers) for numbers in done.used.values()} == {16, 24}
    used = done.examples()
    epochs = [
        used[begin : begin + example_training.EXAMPLES]
        for begin in range(0, len(used), example_training.EXAMPLES)
    ]
    for epoch in epochs[:-1]:
        assert sorted(epoch) == list(range(example_training.EXAMPLES))
    assert len(set(epochs[-1])) == len(epochs[-1])


@check
def nothing_is_traced_again_on_a_mesh_seen_before(directory: Path) -> None:
    train(options(), directory=directory / "once", steps=3)
    example_training.TRACES.clear()
    done = train(
        options(snapshot_period=1),
        *(fail_at(step, 1, down_for=GONE) for step in (6, 12)),
        back_at=[8, 14],
    )
    assert [len(slices) for slices in done.attempts] == [3, 2, 3, 2, 3], done
    assert len(example_training.TRACES) <= 1, "only for the mesh of two"


@check
def disabled_elasticity_runs_once(directory: Path) -> None:
    error = raised_by(
        jax.errors.JaxRuntimeError,
        options(elastic_enabled=False),
        fail_at(4, 1),
        directory=directory,
    )
    assert "DATA_LOSS" in str(error)
    kinds = [event.kind for event in read_ledger(directory)]
    assert kinds.count("elastic.attempt.started") == 1
    assert "elastic.retry" not in kinds


@check
def callbacks_are_called_in_order(directory: Path) -> None:
    called: list[str] = []

    def policy(attempt: int, error: Exception) -> bool:
        called.append(f"{attempt}: {type(error).__name__}")
        return True

    train(
        options(),
        fail_at(4, 1),
        directory=directory,
        pre_callback=lambda: called.append("before"),
        on_elastic_event_callback=lambda: called.append("event"),
        retry_policy=policy,
    )
    assert called == ["before", "event", "1: JaxRuntimeError", "before"]


@check
def an_active_profile_is_refused(directory: Path) -> None:
    jax.profiler.start_trace(str(directory))
    try:
        error = raised_by(InvalidRequestError, options())
    finally:
        jax.profiler.stop_trace()
    assert error.field == "jax.profiler"


@check
def a_profile_is_refused_in_a_run(directory: Path) -> None:
    def begin(step: int) -> None:
        if step == 2:
            with jax.profiler.trace(str(directory / "trace")):
                raise AssertionError("it began")

    with contextlib.suppress(InvalidRequestError):
        train(options(), directory=directory, pause=begin)
        raise AssertionError("it was not refused")
    # Outside of a run it works as before.
    with jax.profiler.trace(str(directory / "trace")):
        pass
    assert list((directory / "trace").rglob("*.xplane.pb"))


@check
def one_run_at_a_time(directory: Path) -> None:
    del directory
    with elastic.Manager(options=options(), slice_key=slice_of, console=False) as manager:

        def train_within(attempt: elastic.Attempt) -> str:
            assert attempt.number == 1
            try:
                manager.run(lambda _: None)
            except InvalidRequestError as error:
                return error.field
            return "two runs"

        assert manager.run(train_within) == "run"
        assert manager.run(lambda attempt: attempt.slice_count) == 3


@check
def an_interrupt_passes(directory: Path) -> None:
    def interrupt(step: int) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        train(options(), directory=directory, pause=interrupt)
        raise AssertionError("it did not pass")
    *_, last = read_ledger(directory)
    assert last.kind == "elastic.run.done"
    assert last.data["outcome"] == "interrupted"


@check
def a_failed_attempt_releases_its_arrays(directory: Path) -> None:
    del directory
    held: list[int] = []
    # The monitor would probe the suspected slice, perhaps while the arrays are counted.
    chosen = options(poll_interval=DEADLINE_S)
    with elastic.Manager(options=chosen, slice_key=slice_of, console=False) as manager:

        def train_badly(attempt: elastic.Attempt) -> None:
            held.append(len(jax.live_arrays()))
            array = jax.device_put(np.zeros(1024), attempt.replicated())
            if attempt.number == 1:
                raise jax.errors.JaxRuntimeError("DATA_LOSS: virtual slice 1 was lost")
            del array

        manager.run(train_badly)
    assert held[1] <= held[0] + 3  # what the probes keep of their programs
