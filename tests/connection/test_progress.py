"""What a person reads while connect() works, and afterwards."""

from __future__ import annotations

import errno
import io
import os

import pytest

from shared_pathways_service.connection import progress_display
from shared_pathways_service.connection.progress_display import Progress, wait_text, warning_text
from shared_pathways_service.events import Event


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def queued(position: int) -> Event:
    return Event.of(
        "tenant.queued",
        source="rm",
        reason="no tpuv6e:2x2 slice is free (2 wanted)",
        data={"position": position, "holders": "ada@a: 1 x tpuv6e:2x2\nbob@b: 1 x tpuv6e:2x2"},
    )


def test_the_queue_is_shown_with_position_and_holders() -> None:
    assert wait_text(queued(2)) == (
        "in the queue at position 2: no tpuv6e:2x2 slice is free (2 wanted); "
        "ada@a holds 1 x tpuv6e:2x2, bob@b holds 1 x tpuv6e:2x2"
    )


def test_a_queue_without_positions() -> None:
    waits = Event.of("tenant.queued", source="rm", reason="other connections hold all slices")
    assert wait_text(waits) == "in the queue: other connections hold all slices"


@pytest.mark.parametrize(("pod", "words"), [("", "Work goes on"), ("p-x", "tunnel is lost")])
def test_a_lost_agent_takes_a_tunnel_with_it(pod: str, words: str) -> None:
    out = io.StringIO()
    lost = Event.of("agent.lost", source="connect", reason="killed", data={"pod": pod})
    Progress(stream=out)(lost)
    assert words in out.getvalue()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("agent.lost", "still cleans up"),
        ("proxy.exited", "p has ended (why)"),
        ("home.lost", "gone (why)"),
        ("metrics.unavailable", "no metrics are sent (why)"),
        ("tenant.preempting", "its slices will be taken in 30 s (why)"),
        ("tenant.preempting_withdrawn", "not taken after all"),
        ("tenant.preempted", "its slices were taken (why); it waits"),
        ("proxy.memory_near_limit", "its proxy is near its memory limit (why)"),
        ("executor.slow", "an executor is slow (why)"),
        ("executor.slow_ended", "an executor is not slow any more (why)"),
        ("slice.unplaced", "slice 1 is lost (why)"),
        ("slice.placed", "slice 1 is on slice-7"),
    ],
)
def test_important_events_are_printed_without_a_waiter(kind: str, words: str) -> None:
    event = Event.of(
        kind,
        source="rm",
        tenant="p",
        slice=1,
        reason="why",
        data={"slice_id": "slice-7", "grace_s": 30.0},
    )
    out = io.StringIO()
    Progress(stream=out)(event)
    assert words in out.getvalue()
    assert warning_text(Event.of("connect.tunnel", source="agent")) is None


def test_a_quick_connection_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # (No step is slow, however busy this machine is.)
    monkeypatch.setattr(progress_display, "_LINE_AFTER_S", 60.0)
    out = io.StringIO()
    progress = Progress(stream=out)
    progress.begin()
    for kind in ("connect.preflight", "connect.create", "slice.placed"):
        progress(Event.of(kind, source="agent"))
        progress.tick()
    progress.end("connected")
    assert out.getvalue() == ""


def test_who_waits_in_the_queue_reads_each_position_once() -> None:
    out = io.StringIO()
    progress = Progress(stream=out)
    progress.begin()
    for position in (2, 2, 1):
        progress(queued(position))
        progress.tick()
        progress.tick()
    progress.end("connected")
    lines = out.getvalue().splitlines()
    assert [line.split(":")[1].strip() for line in lines[:2]] == [
        "in the queue at position 2",
        "in the queue at position 1",
    ]
    assert lines[2].startswith("sps: connected after ")


def test_a_step_that_begins_in_the_queue_does_not_hide_it() -> None:
    out = io.StringIO()
    progress = Progress(stream=out)
    progress.begin()
    progress(queued(1))
    progress(Event.of("connect.start", source="agent"))
    progress.tick()
    assert "in the queue at position 1" in out.getvalue()


@pytest.mark.parametrize(
    "kind", ["tenant.dequeued", "tenant.running", "slice.placed", "connect.delete"]
)
def test_the_queue_is_not_shown_after_leaving_it(kind: str) -> None:
    out = io.StringIO()
    progress = Progress(stream=out)
    progress.begin()
    progress(queued(1))
    progress(Event.of(kind, source="agent"))
    progress.tick()
    assert "in the queue" not in out.getvalue()


def test_a_terminal_has_one_moving_line_that_goes_away() -> None:
    out = Terminal()
    progress = Progress(stream=out)
    progress.begin()
    progress(queued(3))
    progress.tick()
    assert "position 3" in out.getvalue()
    progress.end("connected")
    assert "connected after" in out.getvalue().splitlines()[-1]


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()])
def test_quiet_is_quiet(out: io.StringIO) -> None:
    progress = Progress(stream=out, quiet=True)
    progress.begin()
    progress(queued(1))
    progress.tick()
    progress.end("connected")
    progress(Event.of("agent.lost", source="connect", reason="killed"))
    assert out.getvalue() == ""


def test_a_late_warning_is_printed() -> None:
    out = io.StringIO()
    progress = Progress(stream=out)
    progress(Event.of("service.warning", source="home", reason="the log cannot be followed"))
    assert out.getvalue() == "sps: the log cannot be followed\n"


def test_a_closed_stream_fails_nothing() -> None:
    out = io.StringIO()
    progress = Progress(stream=out)
    out.close()
    wait_and_warn(progress)


def test_without_standard_error_nothing_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    wait_and_warn(Progress())


class ClosingTerminal(Terminal):
    """Is closed after it was found to be a terminal, and before it is written to."""

    is_gone = False

    def write(self, text: str) -> int:
        if self.is_gone:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(text)


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_terminal_that_is_closed_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, ticks: int
) -> None:
    # (On one that cannot move its cursor nothing is drawn.)
    monkeypatch.setenv("TERM", "xterm")
    out = ClosingTerminal()
    progress = Progress(stream=out)
    progress.begin()
    progress(queued(2))
    for _ in range(ticks):
        progress.tick()
    assert ("position 2" in out.getvalue()) is bool(ticks)
    out.is_gone = True
    progress.tick()
    progress.end("connected")
    wait_and_warn(progress)


def wait_and_warn(progress: Progress) -> None:
    progress.begin()
    progress(queued(1))
    progress.tick()
    progress.end("connected")
    progress(Event.of("home.lost", source="agent"))


def test_important_events_are_printed_in_quiet_mode() -> None:
    out = io.StringIO()
    Progress(stream=out, quiet=True).print_line("something is left")
    assert out.getvalue() == "sps: something is left\n"


@pytest.mark.parametrize(
    ("out", "url", "shown"),
    [
        (Terminal(), "http://127.0.0.1:1/?token=a", True),
        (Terminal(), None, False),
        # (A log may be read by others.)
        (io.StringIO(), "http://127.0.0.1:1/?token=a", False),
    ],
)
def test_a_terminal_shows_the_page_that_is_served(
    out: io.StringIO, url: str | None, shown: bool
) -> None:
    progress = Progress(stream=out)
    progress.begin()
    progress(queued(1))
    progress.tick()
    progress.end("connected", lambda: url)
    assert "sps: connected after" in out.getvalue()
    assert ("sps: page: http://127.0.0.1:1/?token=a\n" in out.getvalue()) is shown
    assert ("page:" in out.getvalue()) is shown


def test_a_quick_connection_shows_nothing() -> None:
    out = Terminal()
    progress = Progress(stream=out)
    progress.begin()
    progress.end("connected", lambda: "http://127.0.0.1:1/")
    assert out.getvalue() == ""
