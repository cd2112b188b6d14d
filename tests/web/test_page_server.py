"""The server of `sps ui` over HTTP: access, the stream of changes, and the history."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.chromium import chromium_path
from harness.processes import DEADLINE_S, KIND, Service, run_async
from harness.web_page import TOKEN, Jobs, ReaderAt, Script, feed_of, page_of
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.web.page_actions import PageActions
from shared_pathways_service.web.page_guard import ByToken
from shared_pathways_service.web.page_server import PageParts, serving
from shared_pathways_service.web.service_feed import ReadableService, ServiceFeed
from tests.servers.conftest import make_service, service

__all__ = ["make_service", "service"]

_STRANGE = "<img src=x onerror=alert(1)>"


@contextlib.asynccontextmanager
async def page(
    reader: ReadableService, delete_command: Sequence[str] = ()
) -> AsyncIterator[tuple[aiohttp.ClientSession, int]]:
    """Serves a page; yields a client that has not shown the token, and the port.

    With a command that deletes connections the page may act on the service.
    """
    feed = ServiceFeed(reader, "embedded", interval_s=0.05)
    jobs = feed_of(Jobs())
    actions = PageActions(feed, delete_command, jobs=jobs) if delete_command else None
    async with (
        asyncio.timeout(DEADLINE_S),
        serving(PageParts(feed=feed, guard=ByToken(TOKEN), jobs=jobs, actions=actions), 0) as port,
    ):
        jar = aiohttp.CookieJar(unsafe=True)  # (of an address without a name)
        base = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(base, cookie_jar=jar) as client:
            yield client, port


def on_page(
    reader: ReadableService,
    look: Callable[[aiohttp.ClientSession], Awaitable[None]],
    delete_command: Sequence[str] = (),
) -> None:
    """Runs a test with a client that has shown the token."""

    async def run() -> None:
        async with page(reader, delete_command) as (client, _):
            async with client.get("/", params={"token": TOKEN}) as response:
                assert response.status == 200
            await look(client)

    run_async(run())


async def told(client: aiohttp.ClientSession, path: str, **parameters: Any) -> Any:
    async with client.get(path, params=parameters) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def messages(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """Yields the events of a stream, signs of life left out."""
    event = ""
    async for line in response.content:
        name, _, value = line.decode().rstrip("\n").partition(":")
        if name == "event":
            event = value.strip()
        elif name == "data" and event != "alive":
            yield event, json.loads(value)


async def until(changes: AsyncIterator[tuple[str, Any]], ok: Callable[[Any], bool]) -> Any:
    async for _, data in changes:
        if ok(data):
            return data
    raise AssertionError("the stream ended")


def test_only_who_shows_the_token_is_let_in() -> None:
    async def run() -> None:
        async with page(Script()) as (client, port):
            for path in ("/", "/?token=wrong", "/static/app.js", "/api/stream", "/api/usage.csv"):
                async with client.get(path) as response:
                    assert response.status == 403
                    assert "address that the command printed" in await response.text()
                    assert not response.cookies
            async with client.get("/", params={"token": TOKEN}) as response:
                assert response.status == 200
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                assert response.headers["Referrer-Policy"] == "no-referrer"
                cookie = response.cookies[f"sps-ui-{port}"]
                assert (cookie["samesite"], cookie["httponly"]) == ("Strict", True)
            async with client.get("/static/app.js") as response:
                assert response.status == 200
                assert "javascript" in response.headers["Content-Type"]
            async with client.get("/static/../page_server.py") as response:
                assert response.status == 404
            # A wrong token is refused beside a good cookie, too: it is what the user typed.
            async with client.get("/?token=wrong") as response:
                assert response.status == 403
            for host, status in (("evil.example", 403), (f"localhost:{port}", 200)):
                shown = {"Host": host, "Cookie": f"sps-ui-{port}={TOKEN}"}
                async with client.get("/", headers=shown) as response:
                    assert response.status == status

    run_async(run())


def test_a_taken_port_is_named() -> None:
    async def run() -> None:
        async with page(Script()) as (_, port):
            feed = ServiceFeed(Script(), "embedded")
            parts = PageParts(feed=feed, guard=ByToken(TOKEN), jobs=feed_of(Jobs()))
            with pytest.raises(SharedPathwaysError, match=f"127.0.0.1:{port}"):
                async with serving(parts, port):
                    pass

    run_async(run())


@pytest.mark.usefixtures("patient_feed")
def test_a_stream_sends_the_state_and_then_what_changes(service: Service) -> None:
    service.start_ready_workers("slice-0")

    async def look(client: aiohttp.ClientSession) -> None:
        async with client.get("/api/stream") as response:
            changes = messages(response)
            _, first = await anext(changes)
            assert first.keys() == {
                "service",
                "slices",
                "executors",
                "tenants",
                "queue",
                "reservations",
                "plans",
            }
            found = await until(changes, lambda data: "slices" in data)
            assert found["slices"]["set"]["slice-0"]["state"] == "ready"
            tenant = service.tenant("ada", user=_STRANGE)
            tenant.expect("running")
            found = await until(changes, lambda data: data.get("tenants", {}).get("set"))
            assert found["tenants"]["set"]["ada"]["user"] == _STRANGE
            service.tenant("bob", queue_timeout_s=600).expect("queued")
            found = await until(changes, lambda data: "queue" in data)
            assert found["queue"]["set"]["bob"]["position"] == 1
            service.stub.ReleaseTenant(pb.ReleaseTenantRequest(tenant="bob", reason="enough"))
            found = await until(changes, lambda data: "queue" in data)
            assert found["queue"]["gone"] == ["bob"]

    on_page(ReaderAt(service.address), look)


def is_answered(data: dict[str, Any]) -> bool:
    """Whether a change says that the service answers."""
    now = data.get("service", {}).get("set", {}).get("service")
    return now is not None and now["unreachable_since"] is None


def test_a_service_that_goes_away_and_comes_back_is_shown(service: Service) -> None:
    async def look(client: aiohttp.ClientSession) -> None:
        async with client.get("/api/stream") as response:
            changes = messages(response)
            await until(changes, is_answered)
            service.rm.kill()
            found = await until(changes, lambda data: "service" in data)
            lost = found["service"]["set"]["service"]
            assert lost["unreachable_since"]
            assert lost["error"]
            async with client.get("/api/usage") as refused:
                assert refused.status == 503
                assert service.address in (await refused.json())["error"]
            service.start_rm()
            await until(changes, is_answered)

    on_page(ReaderAt(service.address), look)


@pytest.mark.usefixtures("patient_feed")
def test_the_history_is_read_on_from_where_it_ended(service: Service) -> None:
    service.start_ready_workers("slice-0")

    async def look(client: aiohttp.ClientSession) -> None:
        async with client.get("/api/stream") as response:
            await until(messages(response), lambda data: data["service"])
            for name in ("ada", "bob"):
                tenant = service.tenant(name, user=f"={name}", team="blue")
                tenant.expect("running")
                service.stub.ReleaseTenant(pb.ReleaseTenantRequest(tenant=name, reason="done"))
                answer = await told(client, "/api/history", since=-60, after=0)
                assert answer["holdings"][-1]["tenant"] == name
            assert answer["complete"]
            more = await told(client, "/api/history", since=-60, after=answer["last"])
            assert (more["holdings"], more["last"]) == ([], answer["last"])
            usage = await told(client, "/api/usage", by="type", since=-60)
            assert usage["rows"][0]["type"] == KIND
            async with client.get("/api/usage.csv", params={"by": "user"}) as csv:
                assert csv.headers["Content-Disposition"] == 'attachment; filename="usage.csv"'
                # A spreadsheet runs no name as a formula.
                assert "'=ada," in await csv.text()
            why = await told(client, "/api/explain", tenant="ada")
            assert "ada" in why["sentences"][0]
            for path in ("usage?by=nothing", "usage?since=x", "history?after=-1"):
                async with client.get(f"/api/{path}") as wrong:
                    assert wrong.status == 400, path
            async with client.get("/api/explain?tenant=nobody") as wrong:
                assert wrong.status in {400, 404}

    on_page(ReaderAt(service.address), look)


def test_a_port_that_is_taken_and_another_name_of_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        page_of(Script()) as port,
        pytest.raises(SharedPathwaysError, match=f"cannot serve the page on .*:{port}"),
        page_of(Script(), port=port),
    ):
        pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="apt-get install chromium"):
        chromium_path()
    named = tmp_path / "google-chrome"
    named.touch(mode=0o755)
    assert chromium_path() == str(named)
