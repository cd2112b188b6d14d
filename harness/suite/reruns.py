"""Runs a failed test again, alone, to tell a flake from a defect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.suite.records import file_name_of
from harness.suite.running import run_pytest

__all__ = ["MOST", "TIMES", "seconds_alone"]

#: How many times a failed test must pass alone.
TIMES = 5
#: With more failures than this the run has failed, and none is run again.
MOST = 15


def seconds_alone(
    test: str, options: Sequence[str], directory: Path, env: Mapping[str, str]
) -> list[float] | None:
    """Returns the seconds of each run of a test alone; None: it failed, and the log is kept.

    Args:
      test: Its node id.
      options: Of pytest.
      directory: Gets the records, and the logs.
      env: Variables beside those of this process.
    """
    seconds = []
    for number in range(1, TIMES + 1):
        name = f"alone-{number}-{file_name_of(test)}"
        log = directory / f"{name}.log"
        status, record = run_pytest(
            [*options, test], directory / f"{name}.jsonl", output=log, env=env
        )
        result = record.results.get(test)
        if status != 0 or result is None or result.outcome != "passed":
            print(f"  failed again ({number} of {TIMES}): {test}\n    {log}")
            return None
        log.unlink()
        seconds.append(result.seconds)
        print(f"  passed alone ({number} of {TIMES}, {result.seconds:.1f} s): {test}", flush=True)
    return seconds
