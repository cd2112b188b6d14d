"""Connections opened and closed: attributes, logs, forks, and event callbacks."""

from __future__ import annotations

import os
import signal
import time

import pytest

from shared_pathways_service import (
    ConnectionClosed,
    Event,
    InvalidRequestError,
    ProxyFailed,
)
from shared_pathways_service.connection import Connection
from tests.agent.support import eventually
from tests.connection.bench import TYPE, Bench, failed

# ---- in and out


def test_a_connection_opens_and_closes(bench: Bench) -> None:
    events: list[Event] = []
    with bench.connect(on_event=events.append) as it:
        assert (it.address, it.total_chips) == ("grpc://unix:/nowhere", 8)
        assert [s.index for s in it.slices] == [0, 1]
        assert [len(s.devices) for s in it.slices] == [2, 1]
        assert len(it.devices) == 3
        [target] = bench.jax.targets
        assert target.token == "token"
        assert target.token_file is not None
        assert target.token_file.read_text() == "token"
        status = it.status()
        assert (status.state, status.placed, status.agent_alive) == ("serve", True, True)
        assert it.logs(1) == [f"{it.proxy_job_name} line 0"]
        assert {"agent", "import_jax", "attach", "connect", "create"} <= set(it.timings)
        assert it.proxy_job_name in it._repr_html_()
        assert it._repr_html_().count("<td>placed</td><td>20") == 2
        assert "serve" in repr(it)
    assert bench.is_clean()
    assert it.status().state == "closed"
    assert not it.status().agent_alive
    for use in (lambda: it.devices, it.logs, it.wait_until_placed):
        with pytest.raises(ConnectionClosed):
            use()
    it.close()
    assert [event.kind for event in events][-1] == "connect.ended"


def test_upstreams_attributes_inside(bench: Bench) -> None:
    before = time.time()
    with bench.connect() as it:
        assert it.start_time is not None
        assert before <= it.start_time <= time.time()
        assert (it.cluster, it.bucket, it.pathways_service) == (None, None, None)
        assert it.expected_tpu_instances == {TYPE: 2}


def test_the_programs_signal_handlers_are_left_alone(bench: Bench) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with bench.connect():
        assert [signal.getsignal(number) for number in numbers] == before
    assert [signal.getsignal(number) for number in numbers] == before


def test_events_are_logged_like_upstream(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="shared_pathways_service.isc_pathways")
    with bench.connect() as it:
        name = it.proxy_job_name
    lines = [record.getMessage() for record in caplog.records]
    expected = [
        f"Deploying Pathways proxy: {name}",
        "Successfully deployed Pathways proxy.",
        "TPU slice 1/2 placed!",
        "TPU placement for 2 slice(s) complete!",
        "Deleting Pathways proxy...",
        "Pathways proxy GKE job deletion complete.",
    ]
    assert [line for line in lines if line in expected] == expected


def test_a_connection_starts_and_closes_repeatedly(bench: Bench) -> None:
    it = bench.connect()
    for _ in range(2):
        assert it.start() is it
        assert len(it.devices) == 3
        it.close()
        it.close()
        assert bench.is_clean()


def test_a_repeated_request_returns_the_live_connection(bench: Bench) -> None:
    heard: list[Event] = []
    first = bench.connect().start()
    assert first.start() is first
    second = bench.connect(on_event=heard.append).start()
    assert second is first
    assert bench.jax.live == 1
    second.close()
    assert heard[-1].kind == "connect.ended"
    assert first.status().state == "closed"
    named = bench.connect(proxy_job_name="mine").start()
    assert bench.connect().start() is bench.connect(proxy_job_name="mine").start() is named
    named.close()


def test_a_repeated_request_replaces_a_failed_connection(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bench.connect().start()
    bench.end_proxy()
    eventually(lambda: failed(first), "the failure to be noticed")
    second = bench.connect().start()
    assert second is not first
    assert second.status().state == "serve"
    assert f"{first.proxy_job_name} had failed: " in capsys.readouterr().err
    second.close()
    with pytest.raises(ProxyFailed):
        first.close()


def test_one_live_connection_per_process(bench: Bench) -> None:
    with bench.connect() as first:
        others = (bench.connect(priority=1), bench.connect(proxy_job_name="mine"))
        starts = [bench.connect().__enter__, first.__enter__, *(other.start for other in others)]
        for start in starts:
            with pytest.raises(InvalidRequestError, match=first.proxy_job_name) as caught:
                start()
            assert "close()" in str(caught.value.hint)
        assert first.status().state == "serve"
    with bench.connect():
        pass


@pytest.mark.race
def test_a_forked_child_does_not_end_the_connection(bench: Bench) -> None:
    with bench.connect() as it:
        if (child := os.fork()) == 0:
            code = 1
            try:
                it.close()
                it.__exit__(None, None, None)
                it.__exit__(ValueError, ValueError("mine"), None)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert it.logs(1)
        assert bench.jax.live == 1


def test_a_failing_event_callback_does_no_harm(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def hear(event: Event) -> None:
        raise ValueError(event.kind)

    with bench.connect(on_event=hear) as it:
        assert it.status().placed
    assert "an event callback failed at connect.serving" in caplog.text


def test_an_event_callback_cannot_close_its_connection(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    its: list[Connection] = []

    def hear(event: Event) -> None:
        if its and event.kind == "slice.unplaced":
            its[0].close()

    with bench.connect(on_event=hear) as it:
        its.append(it)
        bench.home.tell(bench.session, "slice.unplaced", "gone", virtual_index=0)
        eventually(lambda: "must not call close()" in caplog.text, "the refusal")
        eventually(lambda: it.status().slices[0] == "unplaced", "the slice's state")
        assert it.status().state == "serve"
