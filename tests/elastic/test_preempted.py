"""The example is preempted in the middle of steps and saves, and comes back by itself."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.programs import DEADLINE_S, program
from shared_pathways_service.elastic.run_ledger import read_ledger
from tests.elastic.example_runs import train

pytestmark = pytest.mark.race

#: Asks for both slices, computes as soon as it has them, and gives them back.
HIGH = """
def hear(event):
    if event.kind == "tenant.queued":
        say("waits")

with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}, priority="high-priority-job",
                          queue_timeout=600, on_event=hear):
    import jax.numpy as jnp
    say("computed", y=(jnp.ones(4) * 3).tolist())
"""
STEPS = 100
UNDER = (
    *(sys.executable, "-m", "shared_pathways_service.cli", "run", "--slices=tpuv6e:2x2=2"),
    *("--priority=low-priority-job", "--"),
)
ARGUMENTS = ("--slices=2", f"--steps={STEPS}", "--checkpoint-period=5")


def losses(lines: list[str]) -> dict[int, str]:
    """What each step's loss was, the last time that it was done."""
    found = (re.match(r"completed step: (\d+),.* loss: (\S+)", line) for line in lines)
    return {int(one[1]): one[2] for one in found if one}


def test_a_run_that_is_preempted_twice_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPS_PREEMPTION_GRACE_S", "0.2")
    with embedded(2):
        code, undisturbed = train(tmp_path / "undisturbed", *ARGUMENTS, under=UNDER)
        assert code == 0, "\n".join(undisturbed)
        wait_until("the slices to be free", nothing_left)
        disturbed = Disturbed(at=(12, 43))
        code, lines = train(tmp_path / "run", *ARGUMENTS, until=disturbed.hear, under=UNDER)
        disturbed.join()
        assert code == 0, "\n".join(lines)
        wait_until("the slices to be free", nothing_left)
    down = [event for event in read_ledger(tmp_path / "run") if event.kind == "slice.down"]
    assert len(down) >= 2 * 2
    assert any("preempted by" in (event.reason or "") for event in down)
    assert [line for line in lines if line.startswith("Restoring checkpoint from")]
    assert sorted(losses(lines)) == list(range(1, STEPS + 1))
    assert losses(lines) == losses(undisturbed)


class Disturbed:
    """Somebody of higher priority comes at some steps of a run."""

    def __init__(self, at: tuple[int, ...]) -> None:
        self._at: Iterator[int] = iter(at)
        self._next = next(self._at)
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def hear(self, line: str) -> bool:
        """Takes in a line of the run's output; the run waits, which may be over otherwise."""
        if line.startswith(f"completed step: {self._next},"):
            self._next = next(self._at, -1)
            waits = threading.Event()
            self._threads.append(threading.Thread(target=self._come, args=(waits,)))
            self._threads[-1].start()
            assert waits.wait(DEADLINE_S), "nobody came"
        return False

    def join(self) -> None:
        """Waits for all who came."""
        for thread in self._threads:
            thread.join()
        assert not self._failures, self._failures
        assert len(self._threads) == 2

    def _come(self, waits: threading.Event) -> None:
        try:
            with program(HIGH) as high:
                high.expect("waits")
                waits.set()
                assert high.expect("computed")["y"] == [3.0] * 4
                assert high.wait() == 0
        except BaseException as error:  # noqa: BLE001 - told by `join`
            self._failures.append(error)
        finally:
            waits.set()
