"""Calls all of jaxlib with objects of a proxy: each returns or raises, and ends no process.

    python -m stress.jaxlib_entries [--out result.json]

Every function, method and property of jaxlib that takes a client, a device, a buffer, a sharding or
an executable is called with those of a proxy, and with mixtures of those and the ones of this
machine's CPU: in a child process, which is started again after the call that ended it. (jaxlib is
C++: many of its functions take any client for one of its own.) Ends with 1 if a signal ended a
child, or if a call did not return.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.deadlines import deadline
from harness.own_service import own_directories
from harness.processes import REPOSITORY
from harness.results import exit_code, measured, write_result

__all__ = ["measure"]

#: Seconds for one call, and for the start of a child.
_CALL_S = 60.0


def measure() -> dict[str, Any]:
    """Returns the numbers of calls by what came of them, and those that ended their process.

    The calls that jaxlib did not take (arguments of wrong types) are counted by the entry, too.
    """
    counts: collections.Counter[str] = collections.Counter()
    not_reached: collections.Counter[str] = collections.Counter()
    fatal: list[str] = []
    first, is_done = 0, False
    with own_directories():
        while not is_done:
            call = None
            with _child(first) as child:
                while report := child.report():
                    if report["what"] == "call":
                        call = report
                    elif report["what"] == "all":
                        is_done = True
                    else:
                        counts[report["what"]] += 1
                        assert call is not None
                        if report["what"] == "not reached":
                            not_reached[call["entry"]] += 1
                        first, call = call["number"] + 1, None
                if is_done:
                    continue
                why = child.why()
            assert call is not None, f"a child ended between two calls: {why}"
            fatal.append(f"{call['text']}: {why.splitlines()[0]}: {call['signature']}")
            first = call["number"] + 1
    return {
        "calls": dict(sorted(counts.items())),
        "not_reached": dict(sorted(not_reached.items())),
        "fatal": fatal,
    }


class _Child:
    """A process that makes the calls from one on, until `close`."""

    def __init__(self, first: int) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        command = [sys.executable, "-W", "ignore", "-m", "stress.jaxlib_entries.child", str(first)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._stderr, text=True, cwd=REPOSITORY
        )

    def report(self) -> dict[str, Any] | None:
        """Returns its next report; None: it has ended, or was ended as it made none in time."""
        assert self._process.stdout
        timer = threading.Timer(deadline(_CALL_S), self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
            timer.join()
        return json.loads(line) if line else None

    def why(self) -> str:
        """Returns why it has ended."""
        code = self._process.wait(deadline(_CALL_S))
        self._stderr.seek(0)
        return f"exit code {code}\n{self._stderr.read()[-2000:]}"

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        with self._process, self._stderr:
            pass


def _child(first: int) -> contextlib.closing[_Child]:
    return contextlib.closing(_Child(first))


def show(result: Mapping[str, Any]) -> None:
    """Prints the summary."""
    for what, count in result["calls"].items():
        print(f"{what:<24}{count:>6}")
    for entry, count in result["not_reached"].items():
        print(f"  not reached: {entry} ({count} times)")
    print(f"calls that ended their process: {len(result['fatal'])} (aim: 0)")
    for call in result["fatal"]:
        print(f"  {call}")


@measured()
def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    result = measure()
    show(result)
    write_result("jaxlib_entries", result, options.out)
    return exit_code(result["fatal"])


if __name__ == "__main__":
    sys.exit(main())
