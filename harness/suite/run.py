"""One run of `scripts/test`: its phases, the reruns of what failed, and its last line."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.results import surroundings
from harness.suite import reruns, totals
from harness.suite.flakes import PACKAGES, Flake, keep
from harness.suite.phases import Form, Phase, PlannedTest, chosen_by
from harness.suite.records import Record, TestResult
from harness.suite.running import collect, run_command, run_pytest, running

__all__ = ["Run"]

#: pytest's exit statuses of a run that came to its end, its tests failing or not.
_ENDED = (0, 1)
_KEPT_RUNS = 30


class Run:
    """Runs a form; use once.

    Args:
      form: What runs.
      directory: Gets a directory for the results of this run, beside those of earlier ones.
      options: Options of pytest for each phase.
    """

    def __init__(self, form: Form, directory: Path, options: Sequence[str] = ()) -> None:
        self._form = form
        now, self._began = datetime.datetime.now(datetime.UTC), time.monotonic()
        self.directory = directory / now.strftime("%Y%m%dT%H%M%S.%f")
        self._options = options
        self._plan: Mapping[str, PlannedTest] = {}
        self._results: dict[str, tuple[Phase, TestResult]] = {}
        #: What failed beside tests, or in a way that no rerun can change.
        self._problems: list[str] = []
        self._flaky: dict[Path, Flake] = {}
        self._phases: list[dict[str, Any]] = []
        self._commands_passed = 0
        self._started = {
            **surroundings(PACKAGES),
            "date": now.isoformat(timespec="seconds"),
            "load_at_start": [round(load, 2) for load in os.getloadavg()],
        }

    def run(self) -> int:
        """Runs everything, prints the totals; returns the exit status."""
        self.directory.mkdir(parents=True)
        try:
            self._run_all()
        except KeyboardInterrupt:
            self._problems.append("the run was interrupted")
        self._print_end()
        self._keep()
        return 1 if self._problems or self._failed() else 0

    def _run_all(self) -> None:
        plan = collect([*self._options, *self._form.paths], self.directory)
        if plan is None:
            self._problems.append("the tests could not be collected")
            return
        self._plan = plan
        for phase in self._form.phases:
            self._run_phase(phase)
        for command in self._form.commands:
            self._run_command(command)
        self._rerun()

    def _run_phase(self, phase: Phase) -> None:
        tests = dict.fromkeys(chosen_by(phase, self._plan))
        if not tests:
            return
        chosen = " ".join(["", *phase.options])
        print(f"== {phase.name}: {len(tests)} tests, {phase.workers} at once{chosen}", flush=True)
        began = time.monotonic()
        with running(phase.beside, self.directory / f"beside_{phase.name}.log"):
            status, record = run_pytest(
                [
                    *self._options,
                    *phase.options,
                    *(f"--numprocesses={phase.workers}", "--dist=worksteal"),
                    f"--junitxml={self.directory / phase.name}.xml",
                    *("-m", phase.markers),
                    *dict.fromkeys(test.partition("::")[0] for test in tests),
                ],
                self.directory / f"{phase.name}.jsonl",
                env=phase.env,
            )
            took = _since(began)
        self._phases.append(
            {"name": phase.name, "workers": phase.workers, "tests": len(tests), **took}
        )
        self._results |= {
            test: (phase, result) for test, result in record.results.items() if test in tests
        }
        self._problems += problems(phase.name, tests, status, record)

    def _run_command(self, command: Sequence[str]) -> None:
        name = " ".join(Path(word).name for word in command)
        print(f"== {name}", flush=True)
        began = time.monotonic()
        log = self.directory / f"{name.replace(' ', '_')}.log"
        status = run_command(command, log)
        self._phases.append({"name": name, **_since(began)})
        if status == 0:
            self._commands_passed += 1
        else:
            self._problems.append(f"{name} ended with {status}: {log}")

    def _rerun(self) -> None:
        """Runs each failed test again, alone."""
        failed = [pair for pair in self._results.values() if pair[1].outcome == "failed"]
        if len(failed) > reruns.MOST:
            print(f"== {len(failed)} failed: too many to run them again")
            return
        if failed:
            print(f"== {len(failed)} failed: each runs again, alone, {reruns.TIMES} times")
        for phase, result in failed:
            options = [*self._options, *phase.options]
            seconds = reruns.seconds_alone(result.test, options, self.directory, phase.env)
            if seconds is None:
                continue
            flake = Flake(result=result, phase=phase.name, workers=phase.workers, alone_s=seconds)
            self._flaky[keep(flake)] = flake

    def _failed(self) -> list[str]:
        """Returns the tests that failed, and did not pass alone."""
        flaky = {flake.result.test for flake in self._flaky.values()}
        return [
            test
            for test, (_, result) in self._results.items()
            if result.outcome == "failed" and test not in flaky
        ]

    def _print_end(self) -> None:
        results = [result for _, result in self._results.values()]
        chosen = {t for phase in self._form.phases for t in chosen_by(phase, self._plan)}
        failed = [*self._failed(), *self._problems]
        passed, skipped = self._counts()
        lines = [
            *totals.time_lines(results),
            *(f"== {phase['name']}: {phase['seconds']:.0f} s" for phase in self._phases),
            *totals.skip_lines(results),
            *totals.left_out_lines(self._plan, chosen),
            *totals.flaky_text(self._flaky),
            *(f"FAILED {what}" for what in failed),
            f"results: {self.directory}",
            f"{passed} passed, {len(failed)} failed, {skipped} skipped",
        ]
        print(*lines, sep="\n", flush=True)

    def _counts(self) -> tuple[int, int]:
        """Returns how many passed, commands too, and how many were skipped."""
        results = [result for _, result in self._results.values()]
        skipped = sum(result.outcome == "skipped" for result in results)
        return len(results) - len(self._failed()) - skipped + self._commands_passed, skipped

    def _keep(self) -> None:
        """Writes what later runs are compared with, and forgets old ones."""
        results = [result for _, result in self._results.values()]
        passed, skipped = self._counts()
        kept = {
            **self._started,
            "seconds": round(time.monotonic() - self._began, 1),
            "passed": passed,
            "skipped": skipped,
            "phases": self._phases,
            "folders": totals.by_folder(results),
            "slowest": {r.test: round(r.seconds, 1) for r in totals.slowest(results)},
            "flaky": [flake.result.test for flake in self._flaky.values()],
            "failed": [*self._failed(), *self._problems],
        }
        (self.directory / "run.json").write_text(json.dumps(kept, indent=1) + "\n")
        for old in sorted(self.directory.parent.iterdir())[:-_KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)


def _since(began: float) -> dict[str, Any]:
    """Returns the seconds since a moment, and the load averages now."""
    return {
        "seconds": round(time.monotonic() - began, 1),
        "load_at_end": [round(load, 2) for load in os.getloadavg()],
    }


def problems(name: str, tests: Collection[str], status: int, record: Record) -> list[str]:
    """Returns what is wrong with a run of pytest beside failed tests."""
    found = [f"{name}: {module} was not collected" for module in record.collection_errors]
    if missing := [test for test in tests if test not in record.results]:
        found.append(f"{name}: {len(missing)} tests did not run, {missing[0]} among them")
    if others := [test for test in record.results if test not in tests]:
        found.append(f"{name}: {len(others)} tests of other phases ran, {others[0]} among them")
    has_failed = any(result.outcome == "failed" for result in record.results.values())
    if status not in _ENDED or record.exit_status != status or (status == 1 and not has_failed):
        found.append(f"{name}: pytest ended with {status}")
    return found
