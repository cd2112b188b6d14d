"""A lost link as a person sees it: on a terminal, in plain output, in a log, and in a notebook."""

from __future__ import annotations

import dataclasses
import io
import logging
import re
import sys
import time

import psutil
import pytest

from harness.patience import patience
from shared_pathways_service.connection import link_line
from shared_pathways_service.connection.link_line import LinkLine
from shared_pathways_service.connection.logging_lines import LogLines
from shared_pathways_service.connection.progress_display import Progress
from shared_pathways_service.connection.views import as_html
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.session.messages import Phase, Snapshot
from tests.agent.support import DEADLINE_S, eventually
from tests.connection.bench import Bench

SERVING = Snapshot(name="p", phase=Phase.SERVE)
#: A loss, however late its line is displayed.
LOST = re.compile(r"link lost \d+ s ago")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lost(ago_s: float = 12.2, *, attempts: int = 0, error: str = "") -> Snapshot:
    link = LinkView(
        state="lost",
        lost_at=time.time() - ago_s,
        attempts=attempts,
        reason="reset by the peer",
        error=error,
    )
    return dataclasses.replace(SERVING, link=link)


def resumed(snapshot: Snapshot, after_s: float = 43.0) -> Snapshot:
    assert snapshot.link is not None
    at = snapshot.link.lost_at + after_s
    return dataclasses.replace(
        snapshot, link=dataclasses.replace(snapshot.link, state="up", resumed_at=at, error="")
    )


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes no time pass between a loss and its display."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(link_line, "_SHOW_AFTER_S", 0.01)
    monkeypatch.setattr(link_line, "_UPDATE_INTERVAL_S", 0.01)


@pytest.mark.usefixtures("stopped_clock")
def test_plain_output_has_a_line_at_the_loss_and_one_at_the_resumption() -> None:
    out = io.StringIO()
    progress = Progress(stream=out)
    progress.update(SERVING)
    for snapshot in (lost(), lost(attempts=1, error="refused"), resumed(lost())):
        progress.update(snapshot)
    assert out.getvalue().splitlines() == [
        "sps: link lost 12 s ago, reconnecting (attempt 1): reset by the peer",
        "sps: link resumed after 43 s",
    ]


@pytest.mark.usefixtures("impatient")
def test_a_terminal_has_one_line_that_is_updated_and_removed() -> None:
    out = Terminal()
    progress = Progress(stream=out)
    progress.update(lost())
    eventually(lambda: "(attempt 1): reset by the peer" in out.getvalue(), "the line")
    progress.update(lost(attempts=3, error="connection refused"))
    eventually(lambda: "(attempt 4): connection refused" in out.getvalue(), "the update")
    assert "\n" not in out.getvalue()
    progress.print_line("something else")
    progress.update(resumed(lost()))
    assert out.getvalue().endswith("sps: link resumed after 43 s\n")
    assert "\r\x1b[2Ksps: something else\n" in out.getvalue()


@pytest.mark.usefixtures("impatient")
def test_a_line_is_no_longer_than_the_terminal() -> None:
    out = Terminal()
    line = LinkLine(out, "sps: ", lambda: True)
    line.update(lost(error="x" * 200).link, is_waiting=True)
    eventually(lambda: "xxx" in out.getvalue(), "the line")
    line.update(None, is_waiting=False)
    drawn = out.getvalue().split("\r\x1b[2K")
    assert max(map(len, drawn)) == 79
    assert drawn[-1] == ""


def test_a_short_loss_is_not_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(link_line, "_SHOW_AFTER_S", DEADLINE_S)
    out = Terminal()
    progress = Progress(stream=out)
    progress.update(lost(0.0))
    progress.update(resumed(lost(0.0), 0.2))
    assert out.getvalue() == ""


@pytest.mark.usefixtures("impatient")
def test_a_wait_on_a_terminal_shows_the_link_instead() -> None:
    out = Terminal()
    progress = Progress(stream=out)
    progress.begin()
    progress.update(lost())

    def is_shown() -> bool:
        progress.tick()
        return re.search(r"link lost \d\d+ s ago", out.getvalue()) is not None

    eventually(is_shown, "the line")
    progress.update(resumed(lost()))
    progress.end()


def test_a_quiet_connection_shows_no_link() -> None:
    out = io.StringIO()
    progress = Progress(stream=out, quiet=True)
    progress.update(lost())
    progress.update(resumed(lost()))
    assert out.getvalue() == ""


def test_a_session_that_ends_takes_the_line_away() -> None:
    out = io.StringIO()
    progress = Progress(stream=out)
    progress.update(lost())
    progress.update(dataclasses.replace(lost(), phase=Phase.DELETE))
    progress.update(Snapshot(name="p", phase=Phase.CLOSED))
    assert len(out.getvalue().splitlines()) == 1


@pytest.mark.usefixtures("impatient")
def test_an_agent_that_dies_takes_the_line_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    with bench.connect() as it:
        bench.home.tell(bench.session, "link.lost", "reset by the peer")
        eventually(lambda: LOST.search(out.getvalue()), "the line")
        [entry] = bench.journal_entries()
        psutil.Process(entry.agent.pid).kill()
        eventually(lambda: "Work goes on" in out.getvalue(), "the warning")
        assert out.getvalue().count("\r\x1b[2K") > 1
        drawn = out.getvalue()
        assert drawn.rfind("link lost") < drawn.rfind("\r\x1b[2K") < drawn.rfind("Work goes on")
        assert it.status().link is None


@pytest.mark.usefixtures("impatient")
def test_a_process_that_ends_before_its_agent_takes_the_line_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    it = bench.connect().start()
    bench.home.tell(bench.session, "link.lost", "reset by the peer")
    eventually(lambda: LOST.search(out.getvalue()), "the line")
    [entry] = bench.journal_entries()
    agent = psutil.Process(entry.agent.pid)
    agent.suspend()
    try:
        with patience(0.02):
            it._at_exit()
        assert "link lost" not in out.getvalue().rpartition("\r\x1b[2K")[2]
    finally:
        agent.resume()
    eventually(bench.is_clean, "the deletion")


@pytest.mark.usefixtures("stopped_clock")
def test_the_log_has_both(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="shared_pathways_service.isc_pathways")
    lines = LogLines(1)
    for snapshot in (SERVING, lost(), lost(attempts=1), resumed(lost()), resumed(lost())):
        lines.update(snapshot)
    assert [record.message for record in caplog.records if "ink " in record.message] == [
        "Link lost 12 s ago, reconnecting (attempt 1): reset by the peer.",
        "Link resumed after 43 s.",
    ]


def test_a_program_without_logging_gets_no_line_beside_the_displayed_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As it is without pytest.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    lines = LogLines(1)
    for snapshot in (SERVING, lost(), resumed(lost())):
        lines.update(snapshot)
    assert capsys.readouterr().err == ""


def test_a_notebook_has_a_row() -> None:
    assert "<th>link</th>" not in as_html(SERVING, "", {})
    shown = as_html(lost(attempts=3, error="<refused>"), "", {})
    assert "lost at 20" in shown
    assert "reconnecting (attempt 4): &lt;refused&gt;</td>" in shown
    assert "up: link resumed after 43 s at 20" in as_html(resumed(lost()), "", {})


def test_a_connection_has_its_link(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    kinds: list[str] = []
    with bench.connect(on_event=lambda event: kinds.append(event.kind)) as it:
        assert it.status().link is None
        bench.home.tell(bench.session, "link.lost", "reset by the peer")
        bench.home.tell(bench.session, "link.dial_failed", "refused", attempt=1)
        eventually(lambda: it.link is not None and it.link.attempts == 1, "the failed attempt")
        link = it.status().link
        assert link is not None
        assert (link.state, link.error, link.reason) == ("lost", "refused", "reset by the peer")

        def is_noted() -> bool:
            # (The agent reports a state before it notes it.)
            [entry] = bench.journal_entries()
            return entry.link == link

        eventually(is_noted, "the link in the journal")
        bench.home.tell(bench.session, "link.resumed", attempts=2)
        eventually(lambda: "link.resumed" in kinds, "the resumption")
        link = it.link
        assert link is not None
        assert (link.state, link.attempts) == ("up", 2)
    assert it.status().link is None
    said = capsys.readouterr().err
    assert len(re.findall(rf"^sps: {LOST.pattern}", said, re.MULTILINE)) == 1
    assert len(re.findall(r"^sps: link resumed after \d+ s$", said, re.MULTILINE)) == 1
