"""Refusals of an API server that has just been started, and has not read its rules yet."""

from __future__ import annotations

import asyncio
import contextlib
import time
import types
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube import paths, single_requests
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.tokens import static_token
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.patience import timeouts

SECRETS = paths.collection("secrets", "n")
DENIED = {
    "kind": "Status",
    "reason": "Forbidden",
    "message": 'secrets is forbidden: User "alice" cannot list resource "secrets" in API group ""',
}


class Starting:
    """Says it is not ready a few times, and then that it is; refuses until shortly after that.

    Args:
      unready: How often it is asked before it is ready.
      refusals: How many requests it refuses.
      tells: Whether this user may ask.
      away: How many requests break before all that.
      says: The status with which it says that it is not ready.

    Attributes:
      asked: The paths of all requests, in order.
    """

    def __init__(
        self, *, unready: int, refusals: int, tells: bool = True, away: int = 0, says: int = 500
    ) -> None:
        self._unready, self._refusals, self._tells, self._away = unready, refusals, tells, away
        self._says = says
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        self._away -= 1
        if self._away >= 0:
            assert request.transport
            request.transport.abort()
            return web.Response()
        if request.path == "/readyz":
            self._unready -= 1
            ready = 200 if self._unready < 0 else self._says
            return web.Response(status=ready if self._tells else 403)
        self._refusals -= 1
        if self._refusals >= 0:
            return web.json_response(DENIED, status=403)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})


@contextlib.asynccontextmanager
async def api_of(server: Starting) -> AsyncIterator[KubeApi]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        access = ClusterAccess(server=f"http://{host}:{port}", tls=None, tokens=static_token())
        async with KubeApi(access) as api:
            yield api
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("says", [500, 429])
def test_a_refusal_of_before_it_was_ready_is_no_answer(says: int) -> None:
    async def work() -> None:
        # The last refusal comes before it says that it is ready, and is heard after it.
        server = Starting(unready=2, refusals=3, says=says)
        async with api_of(server) as api:
            assert (await api.get(SECRETS))["items"] == []
        assert server.asked == [*[SECRETS, "/readyz"] * 3, SECRETS]

    asyncio.run(work())


def test_nor_when_another_request_found_it_ready() -> None:
    async def work() -> None:
        heard = asyncio.Event()

        class Slow(Starting):
            async def answer(self, request: web.Request) -> web.Response:
                response = await super().answer(request)
                if request.path == SECRETS and self.asked.count(SECRETS) == 1:
                    await heard.wait()  # refused before it was ready; arrives long after
                return response

        server = Slow(unready=0, refusals=2)
        async with api_of(server) as api:
            first = asyncio.ensure_future(api.get(SECRETS))
            while not server.asked:
                await asyncio.sleep(0)
            assert (await api.get(SECRETS))["items"] == []
            heard.set()
            assert (await first)["items"] == []
        assert server.asked == [SECRETS, SECRETS, "/readyz", SECRETS, SECRETS]

    asyncio.run(work())


@pytest.mark.parametrize("tells", [True, False])
def test_a_server_that_is_ready_is_believed(tells: bool) -> None:
    async def work() -> None:
        server = Starting(unready=0, refusals=9, tells=tells)
        async with api_of(server) as api:
            for _ in range(2):
                with pytest.raises(AccessDenied):
                    await api.get(SECRETS)
        # It is not asked each time.
        assert server.asked == [SECRETS, "/readyz", SECRETS, SECRETS]

    asyncio.run(work())


def test_one_that_was_away_may_not_yet_know_that_it_may_tell() -> None:
    async def work() -> None:
        # (aiohttp by itself asks a second time.)
        server = Starting(unready=0, refusals=3, tells=False, away=2)
        async with api_of(server) as api:
            assert (await api.get(SECRETS))["items"] == []
        assert server.asked == [SECRETS, SECRETS, *[SECRETS, "/readyz"] * 3, SECRETS]

    asyncio.run(work())


@pytest.mark.parametrize("gateway", [False, True])
def test_nor_if_its_first_answer_takes_long(monkeypatch: pytest.MonkeyPatch, gateway: bool) -> None:
    passed_s = 0.0

    class Slow(Starting):
        async def answer(self, request: web.Request) -> web.Response:
            nonlocal passed_s
            response = await super().answer(request)
            if response.status == 403 and not passed_s:
                if gateway and self.asked.count(SECRETS) == 3:
                    # In place of the server, which is still away.
                    return web.Response(status=502)
                passed_s = 2 * timeouts.API_SETTLING.s
            return response

    async def work() -> None:
        server = Slow(unready=0, refusals=2 + gateway, tells=False, away=2)
        clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s, time=time.time)
        monkeypatch.setattr(single_requests, "time", clock)
        async with api_of(server) as api:
            assert (await api.get(SECRETS))["items"] == []
        assert server.asked == [SECRETS] * (2 + gateway) + [SECRETS, "/readyz"] * 2 + [SECRETS]

    asyncio.run(work())


def test_a_watch_outlives_it() -> None:
    async def work() -> None:
        server = Starting(unready=1, refusals=2)
        async with api_of(server) as api, contextlib.aclosing(watch(api, SECRETS)) as events:
            assert (await anext(events)).kind == "SYNCED"

    asyncio.run(work())
