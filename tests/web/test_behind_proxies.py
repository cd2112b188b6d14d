"""The page behind proxies: below a path, at another host, in JupyterLab's launcher."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from playwright.sync_api import expect

from harness.chromium import chromium, skip_without_chromium
from harness.embedded import embedded
from harness.jupyterlab import JupyterLab
from harness.processes import DEADLINE_S, run_async
from harness.programs import sps_running
from harness.web_page import TOKEN, in_thread, page_of
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.web.outer_address import OuterAddress, outer_address
from shared_pathways_service.web.own_socket import own_socket, removed_at_the_end
from tests.web.samples import jobs, team_sample

expect.set_options(timeout=DEADLINE_S * 1000)
_OUTER = "https://hub.example.org/user/ada/proxy/{port}/"
_HOP_BY_HOP = (
    "transfer-encoding",
    "connection",
    "keep-alive",
    "content-length",
    "content-encoding",
)


@contextlib.asynccontextmanager
async def prefix_proxy(prefix: str, port: int) -> AsyncIterator[int]:
    """Serves a loopback port below a path, as an ingress does: the path is stripped."""

    async def forward(request: web.Request) -> web.StreamResponse:
        target = f"http://127.0.0.1:{port}/{request.match_info['rest']}"
        async with (
            aiohttp.ClientSession(
                auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            ) as client,
            client.request(
                request.method,
                target,
                params=request.query,
                headers=request.headers,
                data=await request.read(),
                allow_redirects=False,
            ) as answer,
        ):
            kept = [(k, v) for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP]
            response = web.StreamResponse(status=answer.status)
            response.headers.extend(kept)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response

    app = web.Application(handler_args={"handler_cancellation": True})
    app.router.add_route("*", prefix + "{rest:.*}", forward)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def test_the_page_works_below_a_path() -> None:
    skip_without_chromium()
    prefix = "/user/ada/proxy/8080/"
    with (
        page_of(team_sample(), jobs=jobs(), delete_command=["false"]) as port,
        in_thread(prefix_proxy(prefix, port)) as outer,
        chromium() as browser,
        browser.new_context() as context,
    ):
        page = context.new_page()
        failed: list[str] = []
        page.on("response", lambda one: failed.append(one.url) if one.status >= 400 else None)
        page.goto(f"http://127.0.0.1:{outer}{prefix}?token={TOKEN}")
        # State, history, jobs, charts and pictures come through; the cookie is this path's own.
        expect(page.locator(".figure").filter(has_text="Slices in use")).to_contain_text("14 of 20")
        expect(page.locator(".figure").filter(has_text="Running jobs")).to_contain_text(
            "jobs11 queued"
        )
        for name, content in (("timeline", "rect.going.own"), ("usage", "canvas")):
            page.goto(f"http://127.0.0.1:{outer}{prefix}#{name}")
            expect(page.locator(content).first).to_be_visible()
        [cookie] = context.cookies()
        assert cookie["path"] == prefix.rstrip("/")
        # An action is the page's own, also at another port than its server's.
        page.goto(f"http://127.0.0.1:{outer}{prefix}#slices")
        page.get_by_role("button", name="slice-8", exact=True).click()
        page.get_by_role("button", name="Cordon").click()
        page.get_by_role("button", name="Cordon").click()
        expect(page.get_by_role("status").filter(has_text="cordoned")).to_have_text(
            re.compile("slice-8 is cordoned")
        )
        assert failed == []


def test_another_host_is_let_in_only_where_its_address_was_named() -> None:
    async def run() -> None:
        for outer, status in ((None, 403), (OuterAddress(_OUTER), 200)):
            with page_of(team_sample(), outer=outer, delete_command=["false"]) as port:
                base = f"http://127.0.0.1:{port}"
                async with aiohttp.ClientSession(
                    base, headers={"Host": "hub.example.org"}
                ) as client:
                    async with client.get("/", params={"token": TOKEN}) as response:
                        assert response.status == status
                        told = await response.text()
                        assert ("sps ui --behind URL" in told) == (status == 403)
                    if status == 403:
                        continue
                    async with client.get("/", headers={"Host": "evil.example"}) as response:
                        assert response.status == 403
                    cookie = {"Cookie": f"sps-ui-{port}={TOKEN}"}
                    async with client.get("/api/actions", headers=cookie) as response:
                        csrf = (await response.json())["csrf_token"]
                    for origin, allowed in (
                        ("https://hub.example.org", True),
                        (base, False),
                        ("https://evil.example", False),
                    ):
                        shown = {**cookie, "Origin": origin, "X-CSRF-Token": csrf}
                        async with client.post(
                            "/api/actions/cordon", json={"slice": "no-such"}, headers=shown
                        ) as response:
                            error = (await response.json())["error"]
                            assert ("not the page's own" not in error) == allowed

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_the_address_at_a_proxy_is_named_or_that_of_vs_code() -> None:
    for url in (_OUTER, _OUTER.rstrip("/"), _OUTER.replace("{port}", "{{port}}")):
        address = outer_address(url, {})
        assert address is not None
        assert address.of_port(8080) == "https://hub.example.org/user/ada/proxy/8080/"
        assert address.host_of(8080) == "hub.example.org"
    vscode = outer_address(None, {"VSCODE_PROXY_URI": "https://{{port}}-lab.example.dev/"})
    assert vscode is not None
    assert vscode.host_of(41) == "41-lab.example.dev"
    for nothing in ({}, {"VSCODE_PROXY_URI": "./proxy/{{port}}"}):
        assert outer_address(None, nothing) is None
    for wrong in ("hub.example.org/x", "ftp://hub/", "https://", "https://hub/?a=1", "http://[::1"):
        with pytest.raises(
            InvalidRequestError, match=re.escape(f"--behind={wrong!r} is not valid")
        ):
            outer_address(wrong, {})


def test_a_socket_is_its_users_alone_and_goes_with_the_command(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with embedded(1), sps_running("ui", f"--socket={path}", "--json") as command:
        assert command.stdout is not None
        assert json.loads(command.stdout.readline()) == {"socket": str(path)}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

        async def look() -> None:
            # (Any name: who reaches the socket has been asked by a proxy.)
            connector = aiohttp.UnixConnector(str(path))
            async with (
                aiohttp.ClientSession("http://hub.example.org", connector=connector) as client,
                client.get("/api/stream") as response,
            ):
                assert response.status == 200
                assert await response.content.readline() == b"event: state\n"

        run_async(look())
        command.terminate()
        assert command.wait(DEADLINE_S) == 143
    assert not path.exists()


def test_a_socket_that_is_served_is_not_taken_and_one_that_is_left_over_is(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(path))
    with own_socket(path) as serves:
        serves.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with sps_running("ui", f"--socket={path}") as command:
            _, err = command.communicate(timeout=DEADLINE_S)
        assert command.returncode == 1
        assert f"cannot serve the page at {path}: Address already in use" in err
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))
        # What is there by then is not one's own.
        with removed_at_the_end(path):
            path.unlink()
            path.write_text("another's")
        assert path.exists()
    with pytest.raises(OSError, match="Address already in use"):
        own_socket(path)


@pytest.mark.parametrize("other", ["--port=8080", "--behind=https://hub.example.org/"])
def test_a_socket_has_no_port_and_no_address(other: str, tmp_path: Path) -> None:
    name = other.partition("=")[0]
    with sps_running("ui", f"--socket={tmp_path}/s", other) as command:
        _, err = command.communicate(timeout=DEADLINE_S)
    assert command.returncode == 2
    assert f"{name}=" in err
    assert "--socket" in err


def test_a_tile_of_jupyterlab_opens_the_page(tmp_path: Path) -> None:
    skip_without_chromium()
    with (
        embedded(1),
        JupyterLab(tmp_path, "/user/ada/") as lab,
        chromium() as browser,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.goto(lab.address("lab"))
        tile = page.locator('.jp-LauncherCard[title*="Shared Pathways"]')
        expect(tile).to_be_visible()
        with context.expect_page() as opened:
            tile.click()
        shown = opened.value
        # It is started by the click; jupyter-server-proxy has it wait meanwhile.
        expect(shown.locator(".figure").filter(has_text="Slices in use")).to_contain_text("0 of 1")
        assert re.search(r"/user/ada/sps/(#.*)?$", shown.url)
        shown.get_by_role("link", name="Slices", exact=True).click()
        expect(shown.get_by_role("listitem").filter(has_text="slice-0")).to_contain_text("free")
