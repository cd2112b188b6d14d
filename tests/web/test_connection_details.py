"""The page of one connection over HTTP: its parts, and what another user may not see."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from harness.processes import run_async
from harness.web_page import NoDetails
from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.metrics.families import Family, Sample
from shared_pathways_service.operations.service_readers.base import LogRequest, ShowLine
from shared_pathways_service.operations.service_readers.shown_counters import (
    Counters,
    ProxyCounters,
)
from shared_pathways_service.runtime.processes import Identity
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.web.connection_details import (
    LOG_LINES,
    ConnectionDetails,
    no_own_entry,
)

_AGENT = """\
# TYPE sps_agent_link_carriers gauge
sps_agent_link_carriers 2
# TYPE sps_agent_link_losses counter
sps_agent_link_losses_total 3
# TYPE sps_agent_preempted gauge
sps_agent_preempted 0
# EOF
"""


class Telling(NoDetails):
    """A service that shows counters and a long log."""

    has_counters = True

    def counters(self, name: str | None) -> Counters:
        assert name is not None
        return {
            name: ProxyCounters(
                {"max_handles": 9}, [Family("sps_proxy_x", "gauge", "", [Sample(1)])]
            )
        }

    def show_logs(self, wanted: LogRequest, show: ShowLine) -> None:
        assert (wanted.component, wanted.lines, wanted.follow) == ("proxy", LOG_LINES, False)
        # A pod may have had several containers, each with so many lines.
        for number in range(2 * LOG_LINES):
            show("", f"<b>{number}</b>")


class Refusing(NoDetails):
    """A cluster that lets this user see no proxies of others."""

    async def proxy(self, name: str) -> KnownProxy:
        raise AccessDenied(f"you may not get the job {name}", hint="ask for the role")

    def show_logs(self, wanted: LogRequest, _show: ShowLine) -> None:
        raise AccessDenied(f"you may not read the log of {wanted.name}")


def entry(metrics: str = "") -> Entry:
    me = Identity(pid=7, start="1")
    link = LinkView(state="lost", lost_at=100.0, attempts=2, reason="reset", error="refused")
    return Entry(
        session="s",
        name="ada",
        home=HomeChoice(name="kubernetes"),
        owner=me,
        agent=me,
        since="2026-01-01T00:00:00Z",
        state="serving",
        metrics=metrics,
        link=link,
    )


@contextlib.asynccontextmanager
async def agent() -> AsyncIterator[str]:
    """Serves the metrics of an agent; yields the URL."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text=_AGENT)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


def test_an_own_connection_shows_its_link_counters_and_log() -> None:
    async def run() -> None:
        async with agent() as url:
            details = ConnectionDetails(
                Telling(), lambda name: entry(url) if name == "ada" else None
            )
            told = await details.read("ada")
            log = await details.log("ada")
        link = told["own"]["link"]
        assert (link["state"], link["attempts"], link["error"]) == ("lost", 2, "refused")
        assert link["lost_at"] == "1970-01-01T00:01:40.000Z"
        assert told["agent"]["value"] == {
            "sps_agent_link_carriers": 2,
            "sps_agent_link_losses_total": 3,
        }
        assert told["counters"]["value"]["counters"] == {"sps_proxy_x": 1}
        assert log["lines"] == [f"<b>{n}</b>" for n in range(LOG_LINES, 2 * LOG_LINES)]
        # The agent has ended since: the rest is shown.
        told = await details.read("ada")
        assert url in told["agent"]["error"]
        assert told["counters"]["value"]

    run_async(run())


def test_of_another_user_each_part_is_shown_or_refused_alone() -> None:
    async def run() -> None:
        details = ConnectionDetails(Refusing(), no_own_entry)
        told = await details.read("ada")
        assert told["own"] is None
        assert told["proxy"] == {
            "value": None, "error": "you may not get the job ada", "hint": "ask for the role"
        }  # fmt: skip
        assert told["agent"] == told["counters"] == {"value": None, "error": None, "hint": None}
        with pytest.raises(AccessDenied, match="log of ada"):
            await details.log("ada")

    run_async(run())


@pytest.mark.parametrize("name", ["", "../ada", "ada,app=x", "<b>"])
def test_a_text_that_is_no_name_is_looked_up_nowhere(name: str) -> None:
    async def run() -> None:
        def own(_name: str) -> Entry | None:
            raise AssertionError("looked up")

        for ask in (ConnectionDetails(Telling(), own).read, ConnectionDetails(Telling(), own).log):
            with pytest.raises(InvalidRequestError):
                await ask(name)

    run_async(run())
