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
    dates: list[str] = []

    async def answer(_: web.Request) -> web.Response:
        given = dates.pop(0)
        date = given or email.utils.formatdate(time.time() + ahead_s, usegmt=True)
        # (An answer in the server's place, as of a network, has another clock.)
        status = 200 if given != "Mon, 01 Jan 2001 00:00:00 GMT" else 404
        return web.json_response({"items": []}, headers={"Date": date}, status=status)

    async def work() -> None:
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
                dates.append("")
                await api.get(PODS)
                assert api.server_time == pytest.approx(time.time() + ahead_s, abs=NEAR_S)
                dates.append("no date")
                await api.get(PODS)
                dates.append("Mon, 01 Jan 2001 00:00:00 GMT")
                with pytest.raises(ApiError):
                    await api.get(PODS)
                assert api.server_time == pytest.approx(time.time() + ahead_s, abs=NEAR_S)
        finally:
            await runner.cleanup()

    asyncio.run(work())
