"""Training on executors, with hosts that are killed: worker and executor, from outside."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.host_kills import HOST, kill_host
from harness.programs import Program, program
from tests.elastic.held_processes import HeldProcesses

pytestmark = pytest.mark.race

STEPS = 12

#: Trains three times: undisturbed; waiting for the second slice, whose host is killed; and going on
#: without it until it is back.
TRAINING = """
from harness.deadlines import deadline
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 3}) as connection:
    import jax, numpy as np
    from shared_pathways_service import elastic
    from harness.elastic.example_training import dataset, initial_state, options, train_step

    def run(steps, kept="", directory=None, **chosen):
        events, used, is_kept = [], {}, threading.Event()

        def hear(event):
            events.append(event)
            if event.kind == kept and event.step == 4:
                is_kept.set()

        def train(attempt):
            state = attempt.restore(initial_state)
            begun = attempt.progress.step
            for batch in attempt.batches(dataset()):
                step = attempt.progress.step
                if step == steps:
                    break
                if kept and step == 6 and attempt.number == 1:
                    assert is_kept.wait(deadline(150))
                    say("kill")
                    wait_for("killed")
                if attempt.slice_count == 2 and step == begun + 2:
                    say("shrunk")
                    while not manager.available_inactive_slices:
                        time.sleep(0.02)
                given = jax.device_put(np.asarray(batch, np.float32), attempt.over_batch())
                state, loss = train_step(state, given)
                used[step] = [int(number) for number in batch]
                attempt.step_done(state, loss)

        with elastic.Manager(options=options(**chosen), directory=directory, on_event=hear,
                             console=False) as manager:
            manager.run(train)

        def of(kind):
            return [event for event in events if event.kind == kind]

        say("ran", losses={event.step: event.loss for event in of("elastic.step")},
            used=[used[step] for step in sorted(used)],
            slices=[event.slices for event in of("elastic.attempt.started")],
            causes=[event.cause for event in of("elastic.retry")],
            origins=[event.origin for event in of("elastic.restored")])

    run(STEPS, elastic_min_slice_count=-1)
    run(STEPS, "checkpoint.saved", DIRECTORY, elastic_min_slice_count=-1, checkpoint_period=4)
    run(STEPS + 4, "snapshot.taken", snapshot_period=2)
say("left")
"""


def check_losses(undisturbed: dict[str, Any], waited: dict[str, Any]) -> None:
    """Checks that a run that waits for its host has the losses of an undisturbed run."""
    assert undisturbed["causes"] == []
    assert waited["causes"] == ["slice_down"]
    assert waited["slices"] == [[0, 1, 2]] * 2
    assert waited["origins"] == ["initial", "checkpoint"]
    assert list(undisturbed["losses"]) == [str(step + 1) for step in range(STEPS)]
    assert waited["losses"] == pytest.approx(undisturbed["losses"], rel=1e-4)
    assert waited["used"] == undisturbed["used"]


def check_growth(shrunk: dict[str, Any]) -> None:
    """Checks that a run went on on the remaining hosts, and used the lost one again."""
    assert shrunk["causes"] == ["slice_down", "scale_up"]
    assert shrunk["slices"] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert shrunk["origins"] == ["initial", "snapshot", "live"]
    # Four steps take an epoch of 96 examples, each of which is used once.
    examples = list(itertools.chain(*shrunk["used"]))
    assert len(examples) == 96 * (STEPS + 4) // 4
    for begin in range(0, len(examples), 96):
        assert sorted(examples[begin : begin + 96]) == list(range(96))


def lose_host(running: Program) -> None:
    running.expect("kill")
    assert kill_host(1) == HOST
    running.tell("killed")


def test_training_goes_on_after_the_death_of_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = HeldProcesses(HOST[0], tmp_path, monkeypatch)
    source = TRAINING.replace("STEPS", str(STEPS)).replace("DIRECTORY", repr(str(tmp_path / "run")))
    with embedded(3, 0, "--engine=distributed"):
        with program(source) as running:
            undisturbed = running.expect("ran")
            lose_host(running)
            check_losses(undisturbed, running.expect("ran"))
            # Nothing takes the place of this one before training goes on without it.
            workers.hold()
            lose_host(running)
            running.expect("shrunk")
            workers.let_go()
            check_growth(running.expect("ran"))
            running.expect("left")
            assert running.wait() == 0
        wait_until("the slices to be free", nothing_left)
