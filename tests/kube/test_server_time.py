"""The time by the clock of an API server, which need not be that of this machine."""

from __future__ import annotations

import asyncio
import email.utils
import time

import pytest
from aiohttp import web

from harness.deadlines import deadline
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.tokens import static_token

PODS = paths.collection("pods", "n")
#: Seconds by which a time may be off: that of an answer has whole seconds.
NEAR_S = deadline(2.0)


def test_the_clock_is_the_servers_after_its_first_answer() -> None:
    ahead_s = 3600.0
    date, status = "", 200

    async def answer(request: web.Request) -> web.Response:
        # (After a refusal the client asks whether the server has just started.)
        given, code = ("", 200) if request.path == "/readyz" else (date, status)
        shown = given or email.utils.formatdate(time.time() + ahead_s, usegmt=True)
        return web.json_response({"items": []}, headers={"Date": shown}, status=code)

    async def work() -> None:
        nonlocal date, status
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        access = ClusterAccess(server=f"http://{host}:{port}", tls=None, tokens=static_token())
        try:
            async with KubeApi(access) as api, asyncio.timeout(deadline(60.0)):
                assert api.server_time == pytest.approx(time.time(), abs=NEAR_S)
                await api.get(PODS)
                assert api.server_time == pytest.approx(time.time() + ahead_s, abs=NEAR_S)
                date = "no date"
                await api.get(PODS)
                # (An answer in the server's place, as of a network, has another clock.)
                date, status = "Mon, 01 Jan 2001 00:00:00 GMT", 404
                with pytest.raises(ApiError):
                    await api.get(PODS)
                assert api.server_time == pytest.approx(time.time() + ahead_s, abs=NEAR_S)
        finally:
            await runner.cleanup()

    asyncio.run(work())
