"""What whoever asks a session for something gets when its home does not answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from harness.patience import patience
from harness.processes import run_async
from shared_pathways_service.agent.runner import SessionRunner
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import (
    ProxyFailed,
    ServiceNotReady,
    SharedPathwaysError,
    TunnelError,
    from_json,
)
from shared_pathways_service.session.messages import Cancelled, Phase, Snapshot
from shared_pathways_service.testing.fake_home import FakeHome
from tests.agent.fake_agent import probe
from tests.agent.support import DEADLINE_S, Bench


class HomeThatCannotClose(FakeHome):
    """Fails in a way that nobody thought of."""

    async def close(self) -> None:
        raise ValueError("it cannot be closed")


@contextlib.asynccontextmanager
async def serving(
    bench: Bench, told: Callable[[Mapping[str, Any]], object] = lambda _: None, **script: Any
) -> AsyncIterator[SessionRunner]:
    """Runs a session in this process, to its proper end; `told` hears what it says."""
    start = bench.start(**script)
    serves = asyncio.Event()

    def hear(message: Mapping[str, Any]) -> None:
        told(message)
        if message["type"] == "state" and message["state"]["phase"] == Phase.SERVE.value:
            serves.set()

    runner = SessionRunner(
        start,
        home=HomeThatCannotClose(**start.home.options),
        journal=bench.journal,
        probe=probe,
        send=hear,
    )
    async with asyncio.timeout(DEADLINE_S):
        running = asyncio.create_task(runner.run())
        await serves.wait()
        yield runner
        runner.cancel(Cancelled(reason="the test is over"))
        assert (await running).phase is Phase.CLOSED


def test_a_log_that_does_not_come_has_an_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(bench, hang=["logs"]) as runner:
            with patience(0.01), pytest.raises(SharedPathwaysError, match="did not come within"):
                await runner.logs(5)

    run_async(test())
    assert bench.nothing_left()
    assert "it cannot be closed" in caplog.text


def test_a_state_is_sent_before_its_event(bench: Bench) -> None:
    states = [""]
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def told(message: Mapping[str, Any]) -> None:
        if message["type"] == "state":
            is_preempted = message["state"]["preempted"]
            states.append("preempted" if is_preempted else message["state"]["phase"])
        elif message["type"] == "event":
            heard.put_nowait((message["event"]["kind"], states[-1]))

    async def test() -> None:
        async with serving(bench, told) as runner:
            session = runner._start.session
            for kind, state in (("tenant.preempted", "preempted"), ("tenant.running", "serve")):
                bench.home.tell(session, kind)
                while (found := await heard.get())[0] != kind:
                    pass
                assert found[1] == state

    run_async(test())


class HomeThatCannotExamine(FakeHome):
    """Fails in a way that nobody thought of when its service is examined."""

    async def service_failure(self, request: SessionRequest) -> SharedPathwaysError | None:
        await super().service_failure(request)
        raise ValueError("it cannot be examined")


FAILING = ServiceNotReady("the service pw is not ready: the head crashes", wanted=1, hint="fix it")


@pytest.mark.parametrize(
    ("home", "script", "expected"),
    [
        (FakeHome, {"service_failure": FAILING.to_json()}, ServiceNotReady),
        (FakeHome, {}, ProxyFailed),
        (FakeHome, {"fail": {"service_failure": TunnelError("gone").to_json()}}, ProxyFailed),
        (HomeThatCannotExamine, {}, ProxyFailed),
    ],
)
def test_the_service_of_a_proxy_that_ended_before_it_served_is_examined(
    bench: Bench,
    home: type[FakeHome],
    script: dict[str, Any],
    expected: type[SharedPathwaysError],
) -> None:
    start = bench.start(place=False, **script)

    ended: list[Snapshot] = []

    async def test() -> None:
        made = home(**start.home.options)
        made.tell(start.session, "proxy.exited", "exit code 1", exit_code=1, outcome="crashed")
        runner = SessionRunner(
            start, home=made, journal=bench.journal, probe=probe, send=lambda _: None
        )
        async with asyncio.timeout(DEADLINE_S):
            ended.append(await runner.run())

    run_async(test())
    [snapshot] = ended
    assert snapshot.error is not None
    error = from_json(snapshot.error)
    assert type(error) is expected
    assert "ended by itself: exit code 1" in error.message
    assert f"service_failure {start.request.name}" in bench.home.calls
    assert bench.nothing_left()
