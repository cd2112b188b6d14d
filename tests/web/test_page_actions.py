"""Actions of the page over HTTP: who may ask for them, what they do, and what is refused."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.processes import DEADLINE_S, KIND, Service, run_async
from harness.web_page import TOKEN, Jobs, ReaderAt, Script, feed_of
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.web.page_actions import PageActions
from shared_pathways_service.web.page_guard import ByToken
from shared_pathways_service.web.page_server import PageParts, serving
from shared_pathways_service.web.service_feed import ServiceFeed
from tests.servers.conftest import make_service, service
from tests.web.test_page_server import messages, on_page, told, until

__all__ = ["make_service", "service"]

#: Stands for `sps delete --json`: refuses the connection "stuck", and finds that "gone" has ended.
_DELETE = """
import json, sys
if sys.argv[1] == "stuck":
    sys.exit("error: stuck is in use hint: end its program")
print(json.dumps({"name": sys.argv[1], "deleted": sys.argv[1] != "gone"}))
"""
#: Stands for `sps profile --json`: has no planes of the connection "partly", and refuses "busy".
_PROFILE = """
import json, sys
name = sys.argv[1]
if name == "busy":
    sys.exit("error: busy cannot be profiled hint: wait for the end of the other profile")
notes = ["no planes of slice 1"] if name == "partly" else []
print(json.dumps({"name": name, "directory": "/profiles/now", "files": [], "notes": notes}))
"""
#: Stands for one that ends on request of the test.
_SLOW_DELETE = """
import pathlib, sys, time
directory, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(directory / f"{name}.began").touch()
while not (directory / f"{name}.may-end").exists():
    time.sleep(0.01)
print('{"deleted": true}')
(directory / f"{name}.ended").touch()
"""


async def act(
    client: aiohttp.ClientSession, action: str, body: Any, **headers: str
) -> tuple[int, Any]:
    """Asks for an action, as the page does unless `headers` say otherwise."""
    token = (await told(client, "/api/actions"))["csrf_token"]
    sent = {"X-CSRF-Token": token or "", **headers}
    async with client.post(f"/api/actions/{action}", json=body, headers=sent) as response:
        return response.status, await response.json()


def test_only_the_page_itself_may_act() -> None:
    body = {"slice": "slice-0"}

    async def foreign(client: aiohttp.ClientSession) -> None:
        wrong: list[dict[str, str]] = [
            {"X-CSRF-Token": ""},
            {"X-CSRF-Token": "wrong"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
        ]
        for headers in wrong:
            status, answer = await act(client, "cordon", body, **headers)
            assert (status, answer["hint"]) == (403, "reload the page"), headers
        status, answer = await act(client, "explode", {})
        assert status == 400
        assert "cordon, drain, uncordon" in answer["error"]
        strange_bodies: list[Any] = [[], "slice-0", {"slice": 7}]
        for strange in strange_bodies:
            assert (await act(client, "cordon", strange))[0] == 400, strange
        client.cookie_jar.clear()
        async with client.post("/api/actions/cordon", json=body) as response:
            assert response.status == 403
            assert "address that the command printed" in await response.text()

    async def read_only(client: aiohttp.ClientSession) -> None:
        assert await told(client, "/api/actions") == {"csrf_token": None}
        status, answer = await act(client, "cordon", body)
        assert status == 403
        assert "--allow-actions" in answer["hint"]

    on_page(Script(), foreign, delete_command=["false"])
    on_page(Script(), read_only)


@pytest.mark.usefixtures("patient_feed")
def test_actions_change_the_service_or_say_why_not(service: Service) -> None:
    service.start_ready_workers("slice-0")

    async def look(client: aiohttp.ClientSession) -> None:
        async def done(action: str, **body: Any) -> str:
            status, answer = await act(client, action, body)
            assert status == 200, answer
            return str(answer["done"])

        async def refused(action: str, **body: Any) -> str:
            status, answer = await act(client, action, body)
            assert status >= 400, answer
            return f"{answer['error']} hint: {answer['hint']}"

        async with client.get("/api/stream") as response:
            changes = messages(response)
            sentence = await done("cordon", slice="slice-0")
            assert sentence == "slice-0 is cordoned; it has no holder"
            await until(changes, lambda data: _states_in(data) == {"slice-0": "cordoned"})
            assert (await done("drain", slice="slice-0")).startswith("slice-0 is ")
            assert (await done("uncordon", slice="slice-0")).startswith("slice-0 is ready")
            # What the service refuses is reported in its words.
            assert "slice-7" in await refused("cordon", slice="slice-7")
            assert "slice" in await refused("reserve", **_reservation(count=1000))

            reserved = await done("reserve", **_reservation(count=1))
            found = await until(changes, lambda data: data.get("reservations"))
            [name] = found["reservations"]["set"]
            assert reserved == f"1 x {KIND} are reserved for ada: {name}"
            assert await done("unreserve", reservation=name) == f"{name} is cancelled"
            assert name in await refused("unreserve", reservation=name)

            assert await done("delete", name="ada-job") == "ada-job is deleted"
            assert await done("delete", name="gone") == "gone had already ended"
            assert await refused("delete", name="stuck") == "stuck is in use hint: end its program"
        for wrong in ({"count": 0}, {"count": 1.5}, {"hours": "8"}, {"team": "both"}):
            status, _ = await act(client, "reserve", _reservation(**wrong))
            assert status == 400, wrong
        assert (await act(client, "delete", {"name": "--forget"}))[0] == 400

    on_page(ReaderAt(service.address), look, [sys.executable, "-c", _DELETE])


def test_a_deletion_outlives_its_page_but_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exists(name: str) -> None:
        while not (tmp_path / name).exists():
            await asyncio.sleep(0.01)

    async def look() -> None:
        feed = ServiceFeed(Script(), "embedded", interval_s=60.0)
        jobs = feed_of(Jobs())
        slow = [sys.executable, "-c", _SLOW_DELETE, str(tmp_path)]
        actions = PageActions(feed, slow, jobs=jobs)
        parts = PageParts(feed=feed, guard=ByToken(TOKEN), jobs=jobs, actions=actions)
        async with asyncio.timeout(DEADLINE_S):
            async with serving(parts, 0):
                closed = asyncio.create_task(actions.act("delete", {"name": "ada-job"}))
                await exists("ada-job.began")
                closed.cancel()
                await asyncio.wait([closed])
                (tmp_path / "ada-job.may-end").touch()
                await exists("ada-job.ended")
                endless = asyncio.create_task(actions.act("delete", {"name": "bob-job"}))
                await exists("bob-job.began")
                monkeypatch.setenv("SPS_PATIENCE", "0.01")
            await asyncio.wait([endless])
            assert endless.cancelled()

    run_async(look())


def test_a_connection_is_profiled_by_the_command() -> None:
    async def look() -> None:
        feed = ServiceFeed(Script(), "embedded", interval_s=60.0)
        command = [sys.executable, "-c", _PROFILE]
        actions = PageActions(feed, ["false"], jobs=feed_of(Jobs()), profile_command=command)
        async with asyncio.timeout(DEADLINE_S):
            told = await actions.act("profile", {"name": "ada-job"})
            assert told == "ada-job is profiled: /profiles/now"
            told = await actions.act("profile", {"name": "partly"})
            assert told == "partly is profiled: /profiles/now; no planes of slice 1"
            with pytest.raises(SharedPathwaysError, match="busy cannot be profiled") as refused:
                await actions.act("profile", {"name": "busy"})
            assert refused.value.hint == "wait for the end of the other profile"
            with pytest.raises(InvalidRequestError):
                await actions.act("profile", {"name": "--output=/"})
        await actions.close()

    run_async(look())


def _states_in(changes: Any) -> dict[str, str]:
    rows = changes.get("slices", {}).get("set", {})
    return {name: row["state"] for name, row in rows.items()}


def _reservation(**fields: object) -> dict[str, object]:
    return {"instance_type": KIND, "count": 1, "user": "ada", "hours": 8, **fields}
