"""Real agents, as processes, over a home that is a script."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from pathlib import Path

import psutil
import pytest

from harness.deadlines import deadline
from shared_pathways_service.agent.clean_up import clean_up_sessions
from shared_pathways_service.agent.client import AgentLost, AgentSession
from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.errors import (
    AccessDenied,
    CleanupError,
    ConnectionClosed,
    InvalidRequestError,
    ProxyFailed,
    ServiceNotFound,
    SharedPathwaysError,
    SlicesTaken,
)
from shared_pathways_service.events import Event
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.session.messages import Phase
from tests.agent.fake_agent import COMMAND
from tests.agent.support import Bench, eventually, serve


def test_a_session_serves_and_leaves_nothing(bench: Bench) -> None:
    start = bench.start(slices=("tpuv6e:2x2", "tpuv6e:2x2"))
    with bench.session(start) as (session, heard):
        snapshot = serve(session)
        assert (snapshot.phase, snapshot.ready) == (Phase.SERVE, True)
        assert snapshot.address == "unix:/nowhere"
        assert [view.state for view in snapshot.slices] == ["placed", "placed"]
        assert session.state.token == "token"
        assert session.state.token_file is not None
        assert session.state.token_file.read_text() == "token"
        assert session.state.token_file.stat().st_mode & 0o077 == 0
        assert session.logs(2)[0].startswith(start.request.name)
        assert bench.home.proxies == [start.session]
        [entry] = bench.journal.entries()
        assert (entry.name, entry.uid) == (start.request.name, start.session)
        assert entry.owner == identity_of()
        assert entry.agent.pid == session.pid
        assert session.close("done") is None
        assert session.snapshot.phase is Phase.CLOSED
    assert bench.nothing_left()
    assert not bench.log.exists()
    assert heard.kinds.index("connect.create") < heard.kinds.index("connect.serving")
    assert heard.kinds[-1] == "connect.ended"
    assert {event.tenant for event in heard.events} == {start.request.name}


def test_the_agent_is_out_of_reach_of_the_terminal(bench: Bench) -> None:
    with bench.session(bench.start()) as (session, _):
        serve(session)
        agent = psutil.Process(session.pid)
        assert agent.terminal() is None
        assert os.getsid(agent.pid) == agent.pid
        files = {Path(file.path) for file in agent.open_files()}
        assert bench.log in files
        assert not any(str(path).startswith("/dev/pts") for path in files)


def test_the_journal_is_written_before_anything_is_created(bench: Bench) -> None:
    start = bench.start(hang=["create_proxy"])
    with bench.session(start) as (session, _):
        eventually(lambda: bench.home.proxies, "the proxy that nobody answered for")
        entry = bench.journal.read(start.session)
        assert entry is not None
        assert entry.uid == ""
        assert session.close("interrupted") is None
    assert bench.nothing_left()
    assert [call.split()[0] for call in bench.home.calls] == [
        "preflight",
        "create_proxy",
        "delete_proxy",
    ]


def test_a_create_that_failed_is_deleted_by_its_session(bench: Bench) -> None:
    error = ProxyFailed("no reply")
    with bench.session(bench.start(fail={"create_proxy": error.to_json()})) as (session, _):
        with pytest.raises(ProxyFailed, match="no reply"):
            serve(session)
        assert session.close("failed") is None
    assert bench.nothing_left()


def test_a_failed_preflight_creates_nothing(bench: Bench) -> None:
    error = ServiceNotFound("no service", candidates=["a:1"])
    with bench.session(bench.start(fail={"preflight": error.to_json()})) as (session, _):
        with pytest.raises(ServiceNotFound) as caught:
            serve(session)
        assert caught.value.candidates == ("a:1",)
    assert [call.split()[0] for call in bench.home.calls] == ["preflight"]


def test_a_refusal_reaches_the_client_as_the_error_it_is(bench: Bench) -> None:
    start = bench.start(place=False)
    with bench.session(start) as (session, _):
        eventually(lambda: bench.home.proxies, "the proxy")
        # The proxy's end comes first, but the refusal is what counts. (Both at once: the agent does
        # not wait for long.)
        refusal = {"kind": "slices_taken", "message": "taken", "holders": "bob@b: 1"}
        bench.home.tell_all(
            start.session,
            Event.of("proxy.exited", data={"exit_code": 1}),
            Event.of("tenant.refused", data=refusal),
        )
        with pytest.raises(SlicesTaken) as caught:
            serve(session)
        assert caught.value.holders == ("bob@b: 1",)
        assert caught.value.message == "Taken. bob@b holds 1."
        assert session.close("failed") is None
    assert bench.nothing_left()


def test_a_queued_session_receives_its_position(bench: Bench) -> None:
    start = bench.start(place=False, queue_timeout_s=50.0)
    with bench.session(start) as (session, heard):
        eventually(lambda: bench.home.proxies, "the proxy")
        tell = bench.home.tell
        tell(start.session, "proxy.serving")
        tell(start.session, "tenant.queued", "0 free", position=2, holders="ada@a: 1\nbob: 1")
        session.wait(lambda snapshot: snapshot.position == 2, 60.0, lambda: None)
        assert session.snapshot.holders == ("ada@a: 1", "bob: 1")
        assert heard.wait_for("tenant.queued").reason == "0 free"
        tell(
            start.session,
            "tenant.refused",
            kind="slices_taken",
            message="waited 50 s",
            position=1,
        )
        with pytest.raises(SlicesTaken) as caught:
            serve(session)
        assert caught.value.position == 1


def test_the_end_of_the_proxy_is_reported_with_its_reason(bench: Bench) -> None:
    start = bench.start()
    with bench.session(start) as (session, heard):
        serve(session)
        bench.home.tell(start.session, "proxy.exited", "killed after the grace", exit_code=70)
        failure = session.wait_for_failure(Timeout(60.0))
        assert isinstance(failure, ProxyFailed)
        assert failure.exit_code == 70
        assert "killed after the grace" in failure.message
        assert heard.wait_for("proxy.exited").reason == "killed after the grace"
        assert session.close("failed") is None
        # The home told no log with it: the agent has asked for it.
        closed = session.failure
        assert isinstance(closed, ProxyFailed)
        assert closed.log_tail[0].startswith(start.request.name)
    assert bench.nothing_left()
    assert bench.log.exists()


@pytest.mark.race
def test_deleting_is_tried_again(bench: Bench) -> None:
    with bench.session(bench.start(fail_deletes=3)) as (session, _):
        serve(session)
        assert session.close("done") is None
    assert bench.nothing_left()
    assert sum(call.startswith("delete") for call in bench.home.calls) == 4


def test_deleting_is_not_tried_again_where_that_is_hopeless(bench: Bench) -> None:
    error = AccessDenied("no", verb="delete")
    with bench.session(bench.start(fail={"delete_proxy": error.to_json()})) as (session, _):
        serve(session)
        left = session.close("done")
    assert isinstance(left, CleanupError)
    assert "no" in left.message
    assert sum(call.startswith("delete") for call in bench.home.calls) == 1
    assert len(bench.journal.entries()) == 1


def test_what_cannot_be_deleted_is_said_and_stays_in_the_journal(bench: Bench) -> None:
    start = bench.start(hang=["delete_proxy"], delete_timeout_s=0.2)
    with bench.session(start) as (session, _):
        serve(session)
        left = session.close("done")
    assert isinstance(left, CleanupError)
    assert start.request.name in left.left[0]
    [entry] = bench.journal.entries()
    assert entry.session == start.session
    # It goes on trying.
    agent = psutil.Process(session.pid)
    assert agent.is_running()
    agent.kill()


@pytest.mark.race
def test_an_abandoned_deletion_is_completed(bench: Bench) -> None:
    start = bench.start(fail_deletes=8, delete_timeout_s=0.2)
    with bench.session(start) as (session, _):
        serve(session)
        assert isinstance(session.close("done"), CleanupError)
        assert len(bench.home.proxies) == 1
    eventually(bench.nothing_left, "the agent to have deleted it")
    # By one home, which knows what it has been through.
    assert sum(call.startswith("delete") for call in bench.home.calls) == 9


@pytest.mark.race
def test_a_killed_agent_is_reported_and_cleaned_up(bench: Bench) -> None:
    start = bench.start()
    with bench.session(start) as (session, heard):
        serve(session)
        psutil.Process(session.pid).kill()
        lost = heard.wait_for("agent.lost")
        assert "signal 9" in str(lost.reason)
        assert not session.agent_alive
        assert bench.home.proxies == [start.session]
        with pytest.raises(AgentLost):
            session.logs(1)
        assert session.close("done") is None
    assert bench.nothing_left()


@pytest.mark.race
def test_an_agent_killed_before_it_served_fails_the_start(bench: Bench) -> None:
    with bench.session(bench.start(hang=["create_proxy"])) as (session, _):
        eventually(lambda: bench.home.proxies, "the proxy")
        psutil.Process(session.pid).kill()
        with pytest.raises(AgentLost, match="signal 9"):
            serve(session)
        assert session.close("failed") is None
    assert bench.nothing_left()


@pytest.mark.race
def test_a_terminated_agent_deletes_its_proxy(bench: Bench) -> None:
    with bench.session(bench.start()) as (session, _):
        serve(session)
        psutil.Process(session.pid).send_signal(signal.SIGTERM)
        failure = session.wait_for_failure(Timeout(60.0))
        assert isinstance(failure, ProxyFailed)
        assert "SIGTERM" in failure.message
        eventually(lambda: session.snapshot.ended, "the end")
        with pytest.raises(ProxyFailed):
            serve(session)
    assert bench.nothing_left()


def test_a_program_that_closed_the_connections_descriptors_leaves_nothing(bench: Bench) -> None:
    """As daemons do, which close all descriptors (python-daemon, gunicorn)."""
    with bench.session(bench.start()) as (session, _), contextlib.ExitStack() as undo:
        serve(session)
        descriptor = session._socket.fileno()
        os.close(descriptor)
        # The number is soon that of another file, which is not written or closed.
        read, written = os.pipe()
        undo.callback(os.close, read)
        undo.callback(os.close, written)
        assert descriptor in {read, written}
        assert session.close("the block ends") is None
        assert isinstance(session.failure, ConnectionClosed)
        assert "closed file descriptors" in session.failure.message
        os.write(written, b"whole")
        assert os.read(read, 100) == b"whole"
    assert bench.nothing_left()


def test_waiting_has_an_end(bench: Bench) -> None:
    with bench.session(bench.start(place=False)) as (session, _):
        ticks: list[float] = []
        with pytest.raises(TimeoutError):
            session.wait(lambda snapshot: snapshot.placed, 0.3, lambda: ticks.append(0.0))
        assert ticks
        assert session.close("enough") is None
        with pytest.raises(ConnectionClosed):
            serve(session)


def test_a_failing_event_callback_does_no_harm(bench: Bench) -> None:
    def fail(_event: object) -> None:
        raise ValueError("mine")

    session = AgentSession(bench.start(), log=bench.log, on_event=fail, command=COMMAND)
    serve(session)
    assert session.close("done") is None
    assert bench.nothing_left()


@pytest.mark.race
def test_an_agent_that_takes_longer_goes_on_by_itself(bench: Bench) -> None:
    start = bench.start(hang=["delete_proxy"], delete_timeout_s=60.0)
    with bench.session(start) as (session, _):
        serve(session)
        agent = psutil.Process(session.pid)
        try:
            left = session.close("the process ends", patience_s=0.5)
            assert isinstance(left, CleanupError)
            assert agent.is_running()
            # It alone is at the deletion: no second agent was started for it.
            assert sum(call.startswith("delete") for call in bench.home.calls) <= 1
        finally:
            agent.kill()
            session._process.wait(deadline(60.0))


def test_a_failed_clean_up_does_not_prevent_the_others(bench: Bench) -> None:
    [first, second] = [bench.start(), bench.start()]
    for start, home in ((first, HomeChoice(name="another")), (second, second.home)):
        (bench.home_directory / f"{start.session}.proxy").touch()
        bench.journal.write(
            Entry(
                session=start.session,
                name=start.request.name,
                home=home,
                owner=Identity(pid=1, start="a"),
                agent=Identity(pid=1, start="b"),
                since=start.request.name,
            )
        )
    sessions = [first.session, second.session]
    left = clean_up_sessions(bench.journal_directory, sessions, bench.log, COMMAND)
    assert isinstance(left, CleanupError)
    assert [first.request.name in text for text in left.left] == [True]
    assert [entry.session for entry in bench.journal.entries()] == [first.session]
    assert bench.home.proxies == [first.session]


def test_an_agent_without_a_place_for_its_journal_says_so(bench: Bench) -> None:
    start = dataclasses.replace(bench.start(), journal=str(bench.home_directory / "calls" / "j"))
    (bench.home_directory / "calls").touch()
    with (
        bench.session(start) as (session, _),
        pytest.raises(SharedPathwaysError, match=r"cannot write in .*/home/calls: Not a directory"),
    ):
        serve(session)


def states(bench: Bench) -> list[str]:
    return [entry.state for entry in bench.journal.entries()]


def test_a_journal_that_cannot_be_written_any_more_ends_no_session(bench: Bench) -> None:
    start = bench.start(place=False)
    with bench.session(start) as (session, _):
        eventually(lambda: states(bench) == ["start"], "the entry of a proxy that starts")
        # As on a disk that is full: nothing can be put in place of the entry.
        (bench.journal_directory / f"{start.session}.new").mkdir()
        bench.home.tell(start.session, "proxy.serving")
        bench.home.tell(start.session, "tenant.running", placed=1, wanted=1)
        assert serve(session).placed
        (bench.journal_directory / f"{start.session}.new").rmdir()
        assert session.close("done") is None
    assert bench.nothing_left()


def test_no_place_for_the_agents_log_is_said_before_anything_is_started(bench: Bench) -> None:
    bench.log.parent.touch()
    with pytest.raises(InvalidRequestError) as caught, bench.session(bench.start()):
        pass
    assert caught.value.field == "SPS_STATE_DIR"
    assert bench.home.calls == []
