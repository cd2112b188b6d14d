"""The speed gate: no part of the service has become much slower than what it is compared with.

    python -m benchmarks.gate [--only PART…] [--rounds N] [--prove] [--out FILE]

Each row is a ratio to a reference of the same run (`parts.py`), so a slow machine does not matter,
and a busy one little: the median of the ratios of rounds that alternate, or the ratio of the
shortest times. A row fails if its ratio is more than 1.5 times what is expected, in each of three
attempts. Ends with 1 if a row fails.

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
_LIMIT_S = 1200.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One ratio.

    Attributes:
      expected: What it usually is.
      is_least: Whether it is that of the shortest times: waiting for others only adds.
      is_processor_time: Whether processor time is measured.
    """

    expected: float
    is_least: bool = False
    is_processor_time: bool = False

    @property
    def limit(self) -> float:
        return TOLERANCE * self.expected

    @property
    def kind(self) -> str:
        """What is added to slow it down, as `slowed` names it."""
        return "processor" if self.is_processor_time else "any"

    def ratio(self, pairs: list[list[float]]) -> float:
        """Returns the ratio of some rounds."""
        if self.is_least:
            figures, references = zip(*pairs, strict=True)
            return float(min(figures) / min(references))
        return statistics.median(figure / reference for figure, reference in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What a process measures.

    Attributes:
      rounds: How often.
      rows: By name.
      slowed: A function that each measured call calls, for `--prove`.
    """

    rounds: int
    rows: Mapping[str, Row]
    slowed: str


_PACKAGE = "shared_pathways_service"
PARTS: Mapping[str, Part] = {
    "connect": Part(
        rounds=6,
        # (Seconds: 0.55 to 0.61 on a quiet machine, 0.3 to 0.55 where ten others want each core, as
        # the reference computes and connect() also waits. Processor time: 0.46 to 0.60 of a round
        # there.)
        rows={
            "connect()": Row(expected=0.8, is_least=True),
            "connect(), processor time": Row(expected=0.6, is_processor_time=True),
        },
        slowed=f"{_PACKAGE}.connection.connection:Connection._start",
    ),
    "proxy": Part(
        rounds=5,
        rows={"proxy round trip": Row(expected=1.0), "proxy upload": Row(expected=2.0)},
        slowed=f"{_PACKAGE}.servers.proxy.session.session:Session.handle",
    ),
    "tunnel": Part(
        rounds=5,
        rows={
            "tunnel round trip": Row(expected=2.5),
            "tunnel bytes": Row(expected=1.4),
            "tunnel round trip, beside an upload": Row(expected=0.8),
        },
        slowed=f"{_PACKAGE}.tunnel.link.link_end:LinkEnd.received",
    ),
    "manager": Part(
        rounds=5,
        rows={"resource manager, placement": Row(expected=1.9)},
        slowed=f"{_PACKAGE}.scheduling.core:ResourceManagerCore.handle",
    ),
    "core": Part(
        rounds=5,
        rows={"resource manager, event of its core": Row(expected=2.4, is_processor_time=True)},
        slowed=f"{_PACKAGE}.scheduling.core:ResourceManagerCore.handle",
    ),
    "elastic": Part(
        rounds=5,
        rows={"elastic step_done": Row(expected=7.0)},
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


def too_slow(part: Part, found: Pairs) -> list[str]:
    """Returns the rows above their limit."""
    return [name for name, row in part.rows.items() if row.ratio(found[name]) > row.limit]


def show(part: Part, found: Pairs, seconds: float) -> None:
    """Prints a part's rows."""
    for name, row in part.rows.items():
        figure, reference = (statistics.median(column) for column in zip(*found[name], strict=True))
        now = row.ratio(found[name])
        print(
            f"{name:38}{figure * 1e3:10.2f} ms{reference * 1e3:10.2f} ms{now:8.2f}"
            f"   {row.limit:.2f} at most{'' if now <= row.limit else ' !'}   ({seconds:.0f} s)",
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


def prove(name: str, rounds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Slows each row of a part down threefold.

    Returns:
      Of each row the times its limit that its ratio then was, above 1 if the gate sees it; and the
      same of each round.
    """
    part = PARTS[name]

    def medians(found: Pairs) -> dict[str, float]:
        return {row: statistics.median(figure for figure, _ in found[row]) for row in part.rows}

    usual = medians(measure(name, rounds))
    # How often a measurement calls the function follows from a trial of each kind.
    trials = {
        kind: min(usual[of] for of, row in part.rows.items() if row.kind == kind)
        for kind in {row.kind for row in part.rows.values()}
    }
    tried = {
        kind: medians(measure(name, rounds, f"{part.slowed}:{trial}:{kind}"))
        for kind, trial in trials.items()
    }
    times, by_round = {}, {}
    for row_name, row in part.rows.items():
        before = usual[row_name]
        calls = max(0.5, (tried[row.kind][row_name] - before) / trials[row.kind])
        added = 2 * before / calls
        print(f"{row_name}: {added * 1e3:.3f} ms in each of {calls:.1f} calls of {part.slowed}")
        began = time.monotonic()
        found = measure(name, rounds, f"{part.slowed}:{added}:{row.kind}")
        show(part, found, time.monotonic() - began)
        print(f"{row_name}: {medians(found)[row_name] / before:.1f} times as slow", flush=True)
        times[row_name] = row.ratio(found[row_name]) / row.limit
        by_round[row_name] = [f / reference / row.limit for f, reference in found[row_name]]
    return times, by_round


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
        times: dict[str, float] = {}
        by_round: dict[str, list[float]] = {}
        for name in asked.only:
            seen, of_rounds = prove(name, asked.rounds or PARTS[name].rounds)
            times, by_round = times | seen, by_round | of_rounds
        write_result("gate_proof", times, asked.out, by_round)
        return exit_code(
            f"{row}: a threefold slow-down was not seen" for row, of in times.items() if of <= 1
        )
    print(f"{'':38}{'median':>13}{'reference':>13}{'ratio':>8}")
    slow: list[str] = []
    ratios: dict[str, float] = {}
    repeats: dict[str, list[float]] = {}
    for name in asked.only:
        now, found = gate(name, asked.rounds or PARTS[name].rounds)
        slow += now
        ratios |= {row: PARTS[name].rows[row].ratio(pairs) for row, pairs in found.items()}
        repeats |= {row: [f / r for f, r in pairs] for row, pairs in found.items()}
    print(f"{time.monotonic() - began:.0f} s")
    write_result("gate", ratios, asked.out, repeats)
    return exit_code(slow)


if __name__ == "__main__":
    sys.exit(main())
