"""Training on executors, with hosts that are killed: worker and executor, from outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from harness.embedded import embedded, status
from shared_pathways_service.elastic.run_ledger import read_ledger
from tests.elastic.example_runs import train

pytestmark = pytest.mark.race

STEPS = 60
ALL = ("--slices=3", f"--steps={STEPS}", "--checkpoint-period=10")


class HostKiller:
    """Kills the host of the tenant's second slice at one step of a run.

    Attributes:
      killed: The command lines of the processes that it killed.
    """

    def __init__(self, at: int) -> None:
        self.killed: list[list[str]] = []
        self._line = f"completed step: {at},"

    def hear(self, line: str) -> bool:
        """Kills the host when a line reports the step; never ends the run."""
        if line.startswith(self._line) and not self.killed:
            self._kill()
        return False

    def _kill(self) -> None:
        told = status()
        [slice_id] = [one["id"] for one in told["slices"] if one["virtual_index"] == 1]
        [worker] = [
            psutil.Process(process["pid"])
            for process in told["processes"]
            if (process["role"], process["slice"]) == ("worker", slice_id)
        ]
        host = [worker, *worker.children(recursive=True)]
        self.killed = [process.cmdline() for process in host]
        for process in host:
            # (An executor may have seen its worker's end.)
            with contextlib.suppress(ProcessLookupError):
                # Each has a process group of its own.
                os.killpg(process.pid, signal.SIGKILL)

    def check(self) -> None:
        """Checks that a worker was killed with its executor."""
        modules = [command[command.index("-m") + 1] for command in self.killed]
        assert modules == [
            "shared_pathways_service.servers.worker",
            "shared_pathways_service.servers.executor",
        ]


def losses(lines: list[str]) -> dict[int, str]:
    """Returns the loss of each step, of its last run."""
    found = (re.match(r"completed step: (\d+),.* loss: (\S+)", line) for line in lines)
    return {int(one[1]): one[2] for one in found if one}


def origins(directory: Path) -> list[object]:
    return [e.data["origin"] for e in read_ledger(directory) if e.kind == "elastic.restored"]


def test_a_run_continues_on_the_remaining_hosts_and_uses_the_lost_one_again(
    tmp_path: Path,
) -> None:
    killer = HostKiller(at=12)
    with embedded(3, 0, "--engine=distributed"):
        code, lines = train(tmp_path, "--steps=400", "--snapshot-period=5", until=killer.hear)
    assert code == 0, "\n".join(lines)
    killer.check()
    causes = [e.data["cause"] for e in read_ledger(tmp_path) if e.kind == "elastic.retry"]
    assert causes == ["slice_down", "scale_up"]
    assert origins(tmp_path) == ["initial", "snapshot", "live"]
    assert sorted(losses(lines)) == list(range(1, 401))
    assert float(lines[-1].removeprefix("held-out accuracy: ")) > 0.9


def test_a_run_that_waits_for_its_host_has_the_losses_of_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    killer = HostKiller(at=25)
    with embedded(3, 0, "--engine=distributed"):
        code, undisturbed = train(tmp_path / "undisturbed", *ALL)
        assert code == 0, "\n".join(undisturbed)
        code, lines = train(tmp_path / "run", *ALL, until=killer.hear)
        assert code == 0, "\n".join(lines)
    killer.check()
    assert origins(tmp_path / "run") == ["initial", "checkpoint"]
    assert sorted(losses(lines)) == list(range(1, STEPS + 1))
    assert losses(lines) == losses(undisturbed)
