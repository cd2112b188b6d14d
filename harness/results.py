"""Kept results: rows as JSON, with the provenance of each figure and a digest of what was written.

A program that measures does so inside `measured`, a context or a decorator of its `main`, and hands
its rows to `write_result`. `errors` finds results that were changed by other means, and results
without provenance: those that were kept before there was any are in `kept_before.toml`, which may
only shrink.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from harness import history, processor_time

__all__ = [
    "Measurement",
    "digest",
    "errors",
    "exit_code",
    "measured",
    "measuring",
    "stamped",
    "surroundings",
    "write_result",
]

ROOT = Path(__file__).parents[1]
#: Digests of results without provenance, by their paths; those of parts by PATH#PART.
KEPT_BEFORE = Path(__file__).with_name("kept_before.toml")
#: Where results are kept.
FOLDERS = ("benchmarks/results", "stress/results", "conformance/results")
_PACKAGES = ("jax", "jaxlib", "grpcio")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What is known of a run's surroundings since it began.

    Attributes:
      began: When.
      load: Of the machine at that time: runnable processes, as a mean over a minute.
      of: `surroundings` at that time.
      watch: Counts processor time; None where there is no /proc.
    """

    began: datetime.datetime
    load: float
    of: Mapping[str, Any]
    watch: subprocess.Popen[str] | None

    @classmethod
    def start(cls) -> Self:
        """Starts to watch. `close` ends that."""
        watch = None
        if Path("/proc/stat").exists():
            watch = subprocess.Popen(
                [sys.executable, "-I", processor_time.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert watch.stdout is not None
            watch.stdout.readline()
        began = datetime.datetime.now(datetime.UTC)
        return cls(began, os.getloadavg()[0], surroundings(), watch)

    def others_cpu(self) -> float | None:
        """Returns the share of the machine's processor time since the start that others used."""
        if self.watch is None:
            return None
        assert self.watch.stdin is not None
        assert self.watch.stdout is not None
        self.watch.stdin.write("\n")
        self.watch.stdin.flush()
        ticks: dict[str, int] = json.loads(self.watch.stdout.readline())
        # (Processes and machine are not read in the same instant: in a run of a few ticks the
        # processes may have more than the machine.)
        return round(min(1.0, ticks["others"] / max(1, ticks["total"])), 3)

    def close(self) -> None:
        """Ends the watching process."""
        if self.watch is not None:
            self.watch.communicate("", timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def measuring() -> contextlib.AbstractContextManager[Measurement]:
    """Returns a measurement that begins now."""
    return Measurement.start()


class measured(contextlib.ContextDecorator):  # noqa: N801 - used like a function
    """What this process measures in here, or in the decorated function, is one measurement."""

    #: The one that goes on; a process has one at a time.
    current: ClassVar[Measurement | None] = None

    def __enter__(self) -> Self:
        assert measured.current is None, "a measurement goes on already"
        measured.current = Measurement.start()
        return self

    def __exit__(self, *_: object) -> None:
        current, measured.current = measured.current, None
        assert current is not None
        current.close()


def digest(record: Any) -> str:
    """Returns a digest of a record, which does not depend on how it is laid out in a file.

    A record's own digest, in its provenance, is left out.
    """
    if isinstance(record, dict) and "provenance" in record:
        of = {name: value for name, value in record["provenance"].items() if name != "digest"}
        record = {**record, "provenance": of}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def stamped(
    rows: Mapping[str, Any],
    measurement: Measurement,
    repeats: Mapping[str, Sequence[float]] | None = None,
    *,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns rows with their provenance, and a digest of both.

    Args:
      rows: What is kept, as JSON has it.
      measurement: Of the run.
      repeats: The values of figures that were measured repeatedly, by name: of them the rounds
        (the fewest of a figure) and the spread are kept, which is the distance of the extremes as
        a part of the median. Figures without values do not count.
      earlier: The record of an earlier run whose rows are among these; its provenance is kept
        beside that of this run.
    """
    plain = json.loads(json.dumps(dict(rows)))
    repeats = {name: values for name, values in (repeats or {}).items() if values}
    spread = {
        name: round((max(values) - min(values)) / abs(statistics.median(values)), 3)
        for name, values in repeats.items()
        if len(values) > 1 and statistics.median(values)
    }
    # (What was measured is what was there at the start; a checkout may move on meanwhile.)
    now = surroundings()
    moved = now["commit"] != measurement.of["commit"]
    provenance = {
        **measurement.of,
        "changed": measurement.of["changed"] or now["changed"] or moved,
        "date": measurement.began.isoformat(timespec="seconds"),
        "load_at_start": round(measurement.load, 2),
        "others_cpu": measurement.others_cpu(),
        "rounds": min((len(values) for values in repeats.values()), default=1),
        "spread": spread,
    }
    if earlier is not None:
        of = dict(earlier.get("provenance") or {"commit": None})
        others = of.pop("continues", [])
        provenance["continues"] = others if of.get("date") == provenance["date"] else [*others, of]
    record = {"provenance": provenance, **plain}
    provenance["digest"] = digest(record)
    return record


def surroundings(packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """Returns the commit, whether files differ from it, the versions and the machine."""
    versions = {"python": platform.python_version()}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "commit": history.head(),
        "changed": history.is_changed(),
        "versions": versions,
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def write_result(
    name: str,
    result: Any,
    out: Path | None,
    repeats: Mapping[str, Sequence[float]] | None = None,
    *,
    earlier: Mapping[str, Any] | None = None,
) -> None:
    """Writes a result as JSON to `out`, if one is given, with its provenance.

    Args:
      name: What measured.
      result: What was measured.
      out: The file.
      repeats: As in `stamped`.
      earlier: As in `stamped`.
    """
    if out is None:
        return
    current = measured.current
    assert current is not None, "what is kept is measured inside `measured`"
    record = stamped({"benchmark": name, "result": result}, current, repeats, earlier=earlier)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2) + "\n")


def exit_code(missed: Iterable[str]) -> int:
    """Prints the figures that missed their limits; returns 1 if there are any."""
    names = list(missed)
    for name in names:
        sys.stderr.write(f"missed its limit: {name}\n")
    return int(bool(names))


def errors(root: Path = ROOT, kept_before: Path = KEPT_BEFORE) -> Iterator[str]:
    """Yields a line for each kept result that is not as its tool wrote it."""
    before: dict[str, str] = tomllib.loads(kept_before.read_text())
    for name, rows in sorted(_kept(root)):
        provenance = rows.get("provenance") if isinstance(rows, dict) else None
        known = before.pop(name, None)
        if provenance is None:
            if known is None:
                yield f"{name} has no provenance: only the tool that measures may write it"
            elif known != digest(rows):
                yield f"{name} was changed since it was kept: restore it, or measure again"
        elif known is not None:
            yield f"{name} has its provenance: remove it from {kept_before.name}"
        elif provenance["digest"] != digest(rows):
            yield f"{name} is not what its tool wrote (digest): measure again, or restore it"
    for name in before:
        yield f"{name} is gone: remove it from {kept_before.name}"


def _kept(root: Path) -> Iterator[tuple[str, Any]]:
    """Yields all kept results, those of the parts of a test suite each, by name."""
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.json"):
            record = json.loads(path.read_text())
            name = str(path.relative_to(root))
            if isinstance(record, dict) and "parts" in record:
                yield from ((f"{name}#{part}", rows) for part, rows in record["parts"].items())
            else:
                yield name, record
