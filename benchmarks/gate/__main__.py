"""The speed gate: no part of the service has become much slower than what it is compared with.

    python -m benchmarks.gate [--only PART…] [--rounds N] [--prove] [--out FILE]

Each row is the median, over rounds that alternate, of a ratio to a reference of the same run
(`parts.py`), so a slow machine does not matter, and a busy one little. A row fails if its ratio is
more than 1.5 times what is expected, in each of three attempts. Ends with 1 if a row fails.

`--prove` slows each row down threefold (`slowed`) and ends with 1 if the gate does not see it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from harness.own_service import ROOT
from harness.results import exit_code, measured, write_result

#: A ratio may be as many times what is expected.
TOLERANCE = 1.5
ATTEMPTS = 3
_SLOWED = Path(__file__).with_name("slowed")
#: Seconds that a part may take.
_LIMIT_S = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What a process measures.

    Attributes:
      rounds: How often.
      expected: The usual ratio of each row.
      slowed: A function that each measured call calls, for `--prove`.
    """

    rounds: int
    expected: Mapping[str, float]
    slowed: str


_PACKAGE = "shared_pathways_service"
PARTS: Mapping[str, Part] = {
    "connect": Part(
        rounds=4,
        # (From 0.73 to 1.34 of whole runs in one week: both read many files, and the machine's
        # memory is not as fast every day.)
        expected={"connect()": 1.1},
        slowed=f"{_PACKAGE}.connection.connection:Connection.start",
    ),
    "proxy": Part(
        rounds=5,
        expected={"proxy round trip": 1.0, "proxy upload": 2.0},
        slowed=f"{_PACKAGE}.servers.proxy.session.session:Session.handle",
    ),
    "tunnel": Part(
        rounds=5,
        expected={
            "tunnel round trip": 2.5,
            "tunnel bytes": 1.4,
            "tunnel round trip, beside an upload": 0.8,
        },
        slowed=f"{_PACKAGE}.tunnel.link.link_end:LinkEnd.received",
    ),
    "manager": Part(
        rounds=5,
        expected={"resource manager, placement": 1.9},
        slowed=f"{_PACKAGE}.scheduling.core:ResourceManagerCore.handle",
    ),
    "core": Part(
        rounds=5,
        expected={"resource manager, event of its core": 2.4},
        slowed=f"{_PACKAGE}.scheduling.core:ResourceManagerCore.handle",
    ),
    "elastic": Part(
        rounds=5,
        expected={"elastic step_done": 7.0},
        slowed=f"{_PACKAGE}.elastic.training.attempt:Attempt.step_done",
    ),
}

Pairs = Mapping[str, list[list[float]]]


def measure(name: str, rounds: int, slowed: str = "") -> Pairs:
    """Runs a part in its own process; returns figures and references of each row."""
    environment = dict(os.environ)
    if slowed:
        environment["SPS_GATE_SLOWED"] = slowed
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(_SLOWED), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
    command = [sys.executable, "-m", "benchmarks.gate.parts", name, str(rounds)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as process:
        try:
            told, errors = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            # (So that it ends what it started.)
            process.send_signal(signal.SIGINT)
            told, errors = process.communicate(timeout=_LIMIT_S)
        finally:
            process.kill()
    if process.returncode:
        raise SystemExit(f"the part {name} ended with {process.returncode}:\n{errors[-4000:]}")
    found: Pairs = json.loads(told)
    return found


def ratio(pairs: list[list[float]]) -> float:
    """Returns the median ratio of the rounds."""
    return statistics.median(figure / reference for figure, reference in pairs)


def too_slow(part: Part, found: Pairs) -> list[str]:
    """Returns the rows above their limit."""
    return [row for row, of in part.expected.items() if ratio(found[row]) > TOLERANCE * of]


def show(part: Part, found: Pairs, seconds: float) -> None:
    """Prints a part's rows."""
    for row, expected in part.expected.items():
        figure, reference = (statistics.median(column) for column in zip(*found[row], strict=True))
        limit = TOLERANCE * expected
        now = ratio(found[row])
        print(
            f"{row:38}{figure * 1e3:10.2f} ms{reference * 1e3:10.2f} ms{now:8.2f}"
            f"   {limit:.2f} at most{'' if now <= limit else ' !'}   ({seconds:.0f} s)",
            flush=True,
        )


def gate(name: str, rounds: int) -> tuple[list[str], Pairs]:
    """Measures a part, again if it seems too slow; returns the rows that always were."""
    part = PARTS[name]
    slow: list[str] = []
    found: Pairs = {}
    for attempt in range(ATTEMPTS):
        began = time.monotonic()
        found = measure(name, rounds)
        show(part, found, time.monotonic() - began)
        now = too_slow(part, found)
        slow = [row for row in now if attempt == 0 or row in slow]
        if not slow:
            break
    return slow, found


def prove(name: str, rounds: int) -> dict[str, list[float]]:
    """Slows each row of a part down threefold.

    Returns:
      Of each row the times its limit that its ratio then was, by round: above 1, the gate sees it.
    """
    part = PARTS[name]

    def medians(found: Pairs) -> dict[str, float]:
        return {row: statistics.median(figure for figure, _ in found[row]) for row in part.expected}

    usual = medians(measure(name, rounds))
    # How often a measurement calls the function follows from a trial.
    trial = min(usual.values())
    tried = medians(measure(name, rounds, f"{part.slowed}:{trial}"))
    seen = {}
    for row, expected in part.expected.items():
        calls = max(0.5, (tried[row] - usual[row]) / trial)
        added = 2 * usual[row] / calls
        print(f"{row}: {added * 1e3:.3f} ms more in each call of {part.slowed}, {calls:.1f} calls")
        began = time.monotonic()
        found = measure(name, rounds, f"{part.slowed}:{added}")
        show(part, found, time.monotonic() - began)
        print(f"{row}: {medians(found)[row] / usual[row]:.1f} times as slow as before", flush=True)
        seen[row] = [
            figure / reference / (TOLERANCE * expected) for figure, reference in found[row]
        ]
    return seen


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, help="of each part, in place of its own")
    parser.add_argument("--prove", action="store_true", help="does it see a threefold slow-down?")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    began = time.monotonic()
    if asked.prove:
        seen: dict[str, list[float]] = {}
        for name in asked.only:
            seen |= prove(name, asked.rounds or PARTS[name].rounds)
        times = {row: statistics.median(of) for row, of in seen.items()}
        write_result("gate_proof", times, asked.out, seen)
        return exit_code(
            f"{row}: a threefold slow-down was not seen" for row, of in times.items() if of <= 1
        )
    print(f"{'':38}{'median':>13}{'reference':>13}{'ratio':>8}")
    slow: list[str] = []
    ratios: dict[str, list[float]] = {}
    for name in asked.only:
        now, found = gate(name, asked.rounds or PARTS[name].rounds)
        slow += now
        ratios |= {row: [f / r for f, r in pairs] for row, pairs in found.items()}
    print(f"{time.monotonic() - began:.0f} s")
    write_result(
        "gate", {row: statistics.median(of) for row, of in ratios.items()}, asked.out, ratios
    )
    return exit_code(slow)


if __name__ == "__main__":
    sys.exit(main())
