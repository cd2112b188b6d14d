"""What a connection does on the way in and out: a real agent, a home that is a script, no JAX."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service import (
    ConnectionClosed,
    Event,
    InvalidRequestError,
    PlacementTimeout,
    ProxyFailed,
    SlicesTaken,
    TunnelError,
    isc_pathways,
    jax_client,
)
from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.agent.request import start_of
from shared_pathways_service.connection import Connection
from shared_pathways_service.connection import connection as connection_module
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.testing.fake_home import FakeHome
from tests.agent.fake_agent import COMMAND
from tests.agent.support import DEADLINE_S, eventually

TYPE = "tpuv6e:2x2"


class JaxRuntimeError(RuntimeError):
    """By this name JAX's own is known."""


@dataclasses.dataclass(frozen=True)
class Device:
    slice_index: int


class Attachments:
    """In place of JAX: what was attached, and whether it was detached again."""

    def __init__(self) -> None:
        self.live = 0
        self.targets: list[jax_client.ProxyTarget] = []
        self.before: Callable[[], object] = lambda: None
        self.devices = (Device(0), Device(1), Device(0))

    def attach(self, target: jax_client.ProxyTarget, *, timeout: float) -> Attachments:
        assert timeout > 0
        self.before()
        self.targets.append(target)
        self.live += 1
        return self

    def detach(self) -> None:
        self.live -= 1


class Bench:
    """Makes connections over a fake service, and looks at what is left of them."""

    def __init__(self, root: Path, attachments: Attachments) -> None:
        self.directory = root / "home"
        self.directory.mkdir()
        self.state = Path(os.environ["SPS_STATE_DIR"])
        self.home = FakeHome(str(self.directory))
        self.script: dict[str, Any] = {}
        self.jax = attachments

    def orders(self, *arguments: Any) -> Start:
        start = start_of(*arguments)
        options = {"directory": str(self.directory), **self.script}
        return dataclasses.replace(start, home=HomeChoice(name="fake", options=options))

    def connect(self, **keywords: Any) -> Connection:
        keywords.setdefault("expected_tpu_instances", {TYPE: 2})
        return isc_pathways.connect(**keywords)

    @property
    def session(self) -> str:
        [session] = self.home.proxies
        return session

    def end_proxy(self, reason: str = "killed after the grace") -> None:
        self.home.tell(self.session, "proxy.exited", reason, exit_code=75, log_tail="last words")

    def is_clean(self) -> bool:
        return not self.home.proxies and not list((self.state / "journal").iterdir())


@pytest.fixture
def bench(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    attachments = Attachments()
    bench = Bench(own_directories, attachments)
    session = functools.partial(AgentSession, command=COMMAND)
    monkeypatch.setattr(connection_module, "AgentSession", session)
    monkeypatch.setattr(connection_module, "start_of", bench.orders)
    monkeypatch.setattr(jax_client, "attach", attachments.attach)
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    yield bench
    assert attachments.live == 0
    assert bench.is_clean()


def failed(connection: Connection) -> bool:
    return connection.status().error is not None


# ---- in and out


def test_in_and_out(bench: Bench) -> None:
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


def test_what_happens_is_logged_as_upstream_does(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_start_and_close_again_and_again(bench: Bench) -> None:
    it = bench.connect()
    for _ in range(2):
        assert it.start() is it
        assert len(it.devices) == 3
        it.close()
        it.close()
        assert bench.is_clean()


def test_the_same_request_again_returns_the_live_connection(bench: Bench) -> None:
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


def test_the_same_request_again_replaces_a_connection_that_has_failed(
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


def test_one_live_connection_a_process(bench: Bench) -> None:
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
def test_a_forked_child_ends_nothing(bench: Bench) -> None:
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


def test_a_hearer_that_fails_breaks_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def hear(event: Event) -> None:
        raise ValueError(event.kind)

    with bench.connect(on_event=hear) as it:
        assert it.status().placed
    assert "hearer of events failed at connect.serving" in caplog.text


def test_a_hearer_cannot_close_what_it_listens_to(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    its: list[Connection] = []

    def hear(event: Event) -> None:
        if its and event.kind == "slice.unplaced":
            its[0].close()

    with bench.connect(on_event=hear) as it:
        its.append(it)
        bench.home.tell(bench.session, "slice.unplaced", "gone", virtual_index=0)
        eventually(lambda: "cannot close the connection" in caplog.text, "the refusal")
        eventually(lambda: it.status().slices[0] == "unplaced", "the slice's state")
        assert it.status().state == "serve"


# ---- when starting fails


def test_a_start_that_fails_leaves_nothing_and_the_next_works(bench: Bench) -> None:
    bench.script = {"fail": {"create_proxy": ProxyFailed("no memory").to_json()}}
    it = bench.connect()
    with pytest.raises(ProxyFailed, match="no memory"):
        it.start()
    assert bench.is_clean()
    it.close()
    bench.script = {}
    with it:
        assert it.status().placed


def test_a_proxy_that_jax_cannot_reach_is_explained_by_the_agent(bench: Bench) -> None:
    def fail() -> None:
        bench.end_proxy("out of memory")
        raise TunnelError("connection refused")

    bench.jax.before = fail
    with pytest.raises(ProxyFailed, match="out of memory") as caught:
        bench.connect().start()
    assert isinstance(caught.value.__cause__, TunnelError)


def test_jax_that_does_not_attach_is_undone(bench: Bench) -> None:
    def fail() -> None:
        raise InvalidRequestError("connect", "x", "another JAX")

    bench.jax.before = fail
    with pytest.raises(InvalidRequestError, match="another JAX"):
        bench.connect().start()
    assert bench.is_clean()


@pytest.mark.parametrize("kind", ["connect.preflight", "connect.create", "connect.probe.done"])
@pytest.mark.race
def test_an_interrupt_while_starting_is_undone(bench: Bench, kind: str) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == kind:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        bench.connect(on_event=interrupt).start()
    assert bench.is_clean()
    with bench.connect() as it:
        assert it.status().placed


@pytest.mark.race
def test_an_interrupt_while_attaching_is_undone(bench: Bench) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    bench.jax.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.connect().start()
    assert bench.is_clean()


# ---- when the proxy ends


def run(bench: Bench, error: BaseException | None, *, wait: bool = True) -> Connection:
    """A block in which the proxy ends, and which then ends well or with an error."""
    with bench.connect() as it:
        bench.end_proxy()
        if wait:
            eventually(lambda: failed(it), "the news")
        if error is not None:
            raise error
    return it


def test_leaving_well_tells_of_a_proxy_that_ended(bench: Bench) -> None:
    with pytest.raises(ProxyFailed, match="killed after the grace") as caught:
        run(bench, None)
    assert caught.value.log_tail == ("last words",)


def test_jaxs_error_is_explained_though_it_comes_before_the_news(bench: Bench) -> None:
    lost = JaxRuntimeError("UNAVAILABLE: Socket closed")
    with pytest.raises(ProxyFailed) as caught:
        run(bench, lost, wait=False)
    assert caught.value.__cause__ is lost


def test_jaxs_other_errors_are_left_alone(bench: Bench) -> None:
    with pytest.raises(JaxRuntimeError, match="INVALID"), bench.connect():
        raise JaxRuntimeError("INVALID_ARGUMENT: shapes")


def test_the_users_error_passes_with_a_note(bench: Bench) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        run(bench, ValueError("mine"))
    assert any("killed after the grace" in note for note in caught.value.__notes__)


def test_the_users_error_that_came_of_jaxs_waits_for_the_news(bench: Bench) -> None:
    mine = ValueError("mine")
    mine.__cause__ = JaxRuntimeError("INTERNAL: Connection to IFRT proxy server was terminated")
    with pytest.raises(ValueError, match="mine") as caught:
        run(bench, mine, wait=False)
    assert any("killed after the grace" in note for note in caught.value.__notes__)


def test_what_the_service_warns_of_is_a_warning(bench: Bench) -> None:
    bench.script = {"warning": "JAX is older there"}
    with pytest.warns(UserWarning, match="JAX is older there"), bench.connect():
        pass


def test_flags_for_dumps_are_a_warning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_x=1 --xla_dump_to=/tmp/x --xla_dump_hlo_as_text")
    asked = r"XLA_FLAGS .*\(xla_dump_to, xla_dump_hlo_as_text\); a proxy ignores"
    with pytest.warns(UserWarning, match=asked) as told, bench.connect():
        pass
    assert len(told) == 1


def test_close_tells_once(bench: Bench) -> None:
    it = bench.connect().start()
    bench.end_proxy()
    eventually(lambda: failed(it), "the news")
    with pytest.raises(ProxyFailed):
        it.close()
    it.close()


# ---- placed later


def test_ready_first_placed_later(bench: Bench) -> None:
    bench.script = {"place": False}

    def serve(event: Event) -> None:
        if event.kind == "connect.create.done":
            bench.home.tell(bench.session, "proxy.serving")

    with bench.connect(wait="ready", queue_timeout=60, on_event=serve) as it:
        assert not it.status().placed
        with pytest.raises(PlacementTimeout) as caught:
            it.wait_until_placed(timeout=0.2)
        assert (caught.value.placed, caught.value.wanted) == (0, 2)
        bench.home.tell(bench.session, "tenant.queued", "0 free", position=1, holders="ada: 2")
        eventually(lambda: it.status().position == 1, "the queue")
        assert [s.state for s in it.slices] == ["queued", "queued"]
        bench.home.tell(bench.session, "tenant.running", placed=2, wanted=2)
        it.wait_until_placed()
        assert it.status().placed


def test_who_is_preempted_waits_until_its_slices_are_back(bench: Bench) -> None:
    def placed(generation: int) -> dict[str, Any]:
        return {"slice_id": "slice-7", "generation": generation, "instance_type": TYPE}

    with bench.connect() as it:
        it.wait_until_placed(timeout=0)
        for index in (0, 1):
            data = placed(index + 1)
            why = "preempted by eve"
            bench.home.tell(bench.session, "slice.unplaced", why, virtual_index=index, **data)
        bench.home.tell(bench.session, "tenant.preempted", "preempted by eve")
        bench.home.tell(bench.session, "tenant.queued", "0 free", position=1, holders="eve: 2")
        # (The agent notes a state in its journal before it takes the next news in.)
        eventually(lambda: it.status().position == 1, "the queue")
        assert (it.status().state, it.status().placed) == ("preempted", False)
        assert "preempted" in repr(it)
        assert "<td>preempted</td>" in it._repr_html_()
        [entry] = Journal(bench.state / "journal").entries()
        assert entry.state == "preempted"
        with pytest.raises(PlacementTimeout) as caught:
            it.wait_until_placed(timeout=0.2)
        assert (caught.value.placed, caught.value.wanted) == (0, 2)
        assert caught.value.holders == ("eve: 2",)

        waiting = concurrent.futures.ThreadPoolExecutor(1)
        with waiting:
            back = waiting.submit(it.wait_until_placed, DEADLINE_S)
            bench.home.tell(bench.session, "slice.placed", virtual_index=0, **placed(3))
            eventually(lambda: it.status().slices[0] == "placed", "one of two slices")
            # One of two is none: what a gang lacks is waited for.
            assert not back.done()
            assert it.status().state == "preempted"
            bench.home.tell(bench.session, "slice.placed", virtual_index=1, **placed(4))
            bench.home.tell(bench.session, "tenant.running", placed=2, wanted=2)
            back.result(DEADLINE_S)
        assert (it.status().state, it.status().placed) == ("serve", True)
        assert "preempted" not in it._repr_html_()


def test_a_slice_that_is_lost_is_waited_for_too(bench: Bench) -> None:
    with bench.connect() as it:
        lost: dict[str, Any] = {"virtual_index": 1, "slice_id": "slice-1", "generation": 2}
        bench.home.tell(bench.session, "slice.unplaced", "its worker has gone", **lost)
        eventually(lambda: it.status().slices[1] == "unplaced", "the loss")
        assert it.status().state == "serve"
        with pytest.raises(PlacementTimeout) as caught:
            it.wait_until_placed(timeout=0.2)
        assert (caught.value.placed, caught.value.wanted) == (1, 2)
        bench.home.tell(bench.session, "slice.placed", **{**lost, "generation": 3})
        it.wait_until_placed(timeout=DEADLINE_S)


def test_a_refusal_after_ready_is_told_once(bench: Bench) -> None:
    bench.script = {"place": False}

    def serve(event: Event) -> None:
        if event.kind == "connect.create.done":
            bench.home.tell(bench.session, "proxy.serving")

    with bench.connect(wait="ready", queue_timeout=1, on_event=serve) as it:
        bench.home.tell(bench.session, "tenant.refused", kind="slices_taken", message="too long")
        with pytest.raises(SlicesTaken, match="too long"):
            it.wait_until_placed()
