"""Writes the log of the core's events, and replays the core from such a log.

A log is JSON lines. Each run of a resource manager is an epoch. Its first line has the
configuration and the restored state; each further line has an event, its time, and the decisions
that it caused. The core depends on nothing else: a replay that decides otherwise shows that the
core has changed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.decisions import Decision, sentence
from shared_pathways_service.scheduling.book.persisted import Persist, Restored
from shared_pathways_service.scheduling.book.plain import from_plain, to_plain
from shared_pathways_service.scheduling.core import ResourceManagerCore

__all__ = ["Difference", "Replay", "decisions_of", "epoch_line", "event_line", "replay"]

#: Version of the lines. Version 1 has the fields of a request beside those of its event.
_FORMAT = 2

_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in messages.ResourceManagerEvent.__args__}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The first event whose replayed decisions differ from the recorded ones.

    Attributes:
      line: The line of the log, from 1.
      event: The event.
      recorded: The recorded decisions, as sentences.
      made: The replayed decisions, as sentences.
    """

    line: int
    event: str
    recorded: tuple[str, ...]
    made: tuple[str, ...]


@dataclasses.dataclass(kw_only=True)
class Replay:
    """The result of replaying a log.

    Attributes:
      epochs: Runs of the resource manager.
      events: Replayed events.
      decisions: Compared decisions.
      torn: Lines that a kill cut off.
      difference: The first one; None: all decisions are identical.
    """

    epochs: int = 0
    events: int = 0
    decisions: int = 0
    torn: int = 0
    difference: Difference | None = None


def epoch_line(config: RmConfig, restored: Restored, now: float, version: str) -> str:
    """Returns the first line of an epoch: what the core was started with, and when."""
    data = {
        "epoch": _FORMAT,
        "version": version,
        "at": now,
        "config": to_plain(config),
        "restored": to_plain(restored),
    }
    return _line(data)


def event_line(
    event: messages.ResourceManagerEvent, now: float, decisions: Sequence[Decision]
) -> str:
    """Returns the line of an event: its time, and the decisions that it caused."""
    data = {"at": now, "event": type(event).__name__, "fields": _sparse(event)}
    if decisions:
        data["decisions"] = [_sparse(one) for one in decisions]
    return _line(data)


def decisions_of(instructions: Iterable[messages.Instruction]) -> tuple[Decision, ...]:
    """Returns the decisions that one event caused."""
    for one in instructions:
        if isinstance(one, Persist):
            return one.decisions
    return ()


def replay(lines: Iterable[str]) -> Replay:
    """Replays the lines of a log up to the first difference.

    Raises:
      ValueError: This is not a log, or is one of another version; with the line number.
    """
    run = _Run()
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            run.take(number, text)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: {error}") from error
        if run.result.difference is not None:
            break
    if not run.result.epochs:
        raise ValueError("line 1: no epoch begins")
    return run.result


class _Run:
    """Replays a log line by line."""

    def __init__(self) -> None:
        self.result = Replay()
        self._core: ResourceManagerCore | None = None
        self._torn: json.JSONDecodeError | None = None

    def take(self, number: int, text: str) -> None:
        try:
            data = _parsed(text)
        except json.JSONDecodeError as error:
            self._tear(error)
            return
        if "epoch" in data:
            self._core = _begun(data)
            self._torn = None
            self.result.epochs += 1
            return
        if self._torn is not None:
            raise self._torn
        self._compare(number, data)

    def _tear(self, error: json.JSONDecodeError) -> None:
        """Skips a torn line, which must be the last one of a run that was killed."""
        if self._torn is not None:
            raise error
        self._torn = error
        self.result.torn += 1

    def _compare(self, number: int, data: dict[str, Any]) -> None:
        if self._core is None:
            raise ValueError("an event before the first epoch")
        event = from_plain(_EVENTS[data["event"]], data["fields"])
        recorded = tuple(from_plain(Decision, one) for one in data.get("decisions", ()))
        made = decisions_of(self._core.handle(event, data["at"]))
        self.result.events += 1
        self.result.decisions += len(recorded)
        if made != recorded:
            self.result.difference = Difference(
                line=number,
                event=data["event"],
                recorded=tuple(map(sentence, recorded)),
                made=tuple(map(sentence, made)),
            )


def _begun(data: dict[str, Any]) -> ResourceManagerCore:
    if data["epoch"] not in {1, _FORMAT}:
        raise ValueError(f"a log of format {data['epoch']}, this is {_FORMAT}")
    config = from_plain(RmConfig, data["config"])
    restored = from_plain(Restored, data["restored"])
    return ResourceManagerCore(config, restored, data["at"])


def _parsed(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("no line of a log")
    return data


def _sparse(value: Any) -> dict[str, Any]:
    """Returns a dataclass as plain JSON data, without fields that have their defaults."""
    return {
        field.name: to_plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    }


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
