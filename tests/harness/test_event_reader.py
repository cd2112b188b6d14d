"""The events in the log of an agent, read while it grows."""

from __future__ import annotations

import json
from pathlib import Path

from harness.testbed.kills import EventReader, events_told_by, wait_for_event
from shared_pathways_service.events import Event

LINE = "2026-12-01 03:10:54,925 INFO {}\n"


def line(kind: str) -> bytes:
    event = {"kind": kind, "source": "agent", "time": "2026-12-01T03:10:54.924Z", "monotonic": 1.0}
    return LINE.format(json.dumps(event, separators=(",", ":"))).encode()


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_each_event_is_read_once_and_a_line_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, second = line("connect.preflight"), line("connect.ended")
    log.write_bytes(b"no event\n" + first + second[:-20])
    reader = EventReader(log)
    assert kinds(reader.read()) == ["connect.preflight"]
    assert reader.read() == []
    log.write_bytes(b"no event\n" + first + second)
    assert kinds(reader.read()) == ["connect.ended"]
    assert kinds(events_told_by(log)) == ["connect.preflight", "connect.ended"]


def test_an_event_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(line("connect.preflight"))

    def is_wanted(event: Event) -> bool:
        with log.open("ab") as file:
            file.write(line("connect.ended"))
        return event.kind == "connect.ended"

    assert wait_for_event("the end", is_wanted, log).kind == "connect.ended"
