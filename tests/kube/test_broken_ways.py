"""Connections that break at the worst moment, on the way to a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.server
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import pytest
from aiohttp import web

from harness.deadlines import deadline
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.kube.kubeconfig import access_of_context, read_kubeconfig
from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.kube.tokens import static_token
from tests.kube.background import Background, background
from tests.kube.certificates import Authority
from tests.kube.control_plane import ControlPlane
from tests.kube.recording_server import recording_server
from tests.kube.relay import Relay, relay
from tests.kube.support import WAIT_S, create, secret, watched

#: Seconds that a watch is silent.
QUIET_S = 1.0
Try = Callable[[], Awaitable[dict[str, object]]]
POD = b'{"metadata": {"name": "a", "uid": "1", "resourceVersion": "2"}}'
NEWS = b'{"type": "ADDED", "object": %b}\n' % POD
BOOKMARK = b'{"type": "BOOKMARK", "object": %b}\n' % POD


@contextlib.asynccontextmanager
async def relayed(plane: ControlPlane) -> AsyncIterator[tuple[KubeApi, Relay]]:
    async with relay(plane.url) as (way, url):
        path = plane.kubeconfig({"token": plane.admin}, url=url)
        async with KubeApi(access_of_context(read_kubeconfig([path]))) as api:
            yield api, way


def test_create_whose_answer_is_lost(control_plane: ControlPlane, namespace: str) -> None:
    async def work() -> None:
        async with relayed(control_plane) as (api, way):
            path = paths.collection("secrets", namespace)
            await api.get(path)
            way.cut_at_next_answer = True
            made = await api.create(path, secret("one", "s1"))
            assert way.was_cut.is_set()
            found = await api.get(path)
            assert [thing["metadata"]["uid"] for thing in found["items"]] == [
                made["metadata"]["uid"]
            ]

    asyncio.run(work())


def test_delete_whose_answer_is_lost(control_plane: ControlPlane, namespace: str) -> None:
    uid = create(control_plane, namespace, "a")["metadata"]["uid"]

    async def work() -> None:
        async with relayed(control_plane) as (api, way):
            await api.get(paths.collection("secrets", namespace))
            way.cut_at_next_answer = True
            # It is gone, whoever did it.
            await api.delete(paths.item("secrets", namespace, "a"), uid=uid)
            assert way.was_cut.is_set()
            assert not (await api.get(paths.collection("secrets", namespace)))["items"]

    asyncio.run(work())


def test_connection_that_is_dead_without_a_word(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "0.15")

    async def work() -> None:
        async with relayed(control_plane) as (api, way):
            path = paths.collection("secrets", namespace)
            await api.get(path)
            before, way.swallow_answers = way.connections, True
            await api.get(path, timeout_s=60)
            assert way.was_cut.is_set()
            assert way.connections > before

    asyncio.run(work())


def test_watch_goes_on_where_its_connection_was_cut(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def work() -> None:
        async with (
            relayed(control_plane) as (api, way),
            watched(api, paths.collection("secrets", namespace)) as watching,
        ):
            assert await watching.until_synced() == []
            create(control_plane, namespace, "a")
            assert await watching.next() == ("ADDED", "a")
            way.cut_at_next_answer = True
            # Its news is what the connection is cut at.
            create(control_plane, namespace, "b")
            assert await watching.next() == ("ADDED", "b")
            assert way.was_cut.is_set()

    asyncio.run(work())


class Scripted(http.server.ThreadingHTTPServer):
    """Answers what a real API server can hardly be made to."""

    def __init__(self, answers: Sequence[tuple[int, dict[str, str], str]]) -> None:
        script = iter(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = next(script)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@contextlib.contextmanager
def scripted(*answers: tuple[int, dict[str, str], str]) -> Iterator[ClusterAccess]:
    with Scripted(answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            yield ClusterAccess(server=url, tls=None, tokens=static_token())
        finally:
            server.shutdown()
            thread.join()


async def get(access: ClusterAccess, timeout_s: float = WAIT_S) -> dict[str, object]:
    async with KubeApi(access) as api:
        return await api.get("/api/v1/nodes", timeout_s=timeout_s)


def test_server_that_asks_to_come_back() -> None:
    busy = json.dumps({"kind": "Status", "reason": "TooManyRequests", "message": "busy"})
    later = {"Retry-After": "0"}
    with scripted((429, later, busy), (503, later, "no JSON"), (200, {}, '{"items": []}')) as way:
        assert asyncio.run(get(way)) == {"items": []}
    with scripted((429, {"Retry-After": "600"}, busy)) as way:
        with pytest.raises(ApiError, match="busy") as caught:
            asyncio.run(get(way))
        assert caught.value.retry_after_s == 600
        assert not caught.value.is_final


def test_answer_of_something_else_on_the_way() -> None:
    headers: dict[str, str] = {}
    page = (200, headers, "<html>log in to the network</html>")
    with scripted(*[page] * 100) as way, pytest.raises(ApiUnreachable, match="no JSON"):
        asyncio.run(get(way, timeout_s=5))
    with scripted((302, {"Location": "/elsewhere"}, "")) as way:
        with pytest.raises(ApiError) as caught:
            asyncio.run(get(way))
        assert caught.value.status == 302


def test_a_deadline_after_another_failure_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[asyncio.Timeout] = []
    requests: list[web.Request] = []
    original = KubeApi._until_final

    async def until_final(
        self: KubeApi, once: Try, method: str, limit: asyncio.Timeout, causes: list[str]
    ) -> dict[str, object]:
        deadlines.append(limit)
        return await original(self, once, method, limit, causes)

    async def answer(request: web.Request) -> web.Response:
        requests.append(request)
        if len(requests) == 1:
            return web.Response(text="<html>log in to the network</html>")
        # (Silent until the client has gone, because its time is up.)
        deadlines[0].reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()
        raise AssertionError("cancelled by then")

    monkeypatch.setattr(KubeApi, "_until_final", until_final)

    async def work() -> None:
        async with served(answer, handler_cancellation=True) as api:
            with pytest.raises(ApiUnreachable, match=r"no answer within 300 s.*no JSON") as caught:
                await api.get("/api/v1/nodes", timeout_s=300)
            assert "no JSON" in caught.value.cause

    asyncio.run(work())
    assert len(requests) == 2


def test_a_request_says_why_it_is_tried_again() -> None:
    refusals = iter([503, 429])
    heard: list[str] = []

    async def answer(_: web.Request) -> web.StreamResponse:
        status = next(refusals, 200)
        return web.json_response(
            {"reason": "Overloaded", "message": f"not now ({status})"}, status=status
        )

    async def work() -> None:
        async with served(answer) as api:
            api.on_trouble = heard.append
            await api.get("/api/v1/nodes")
            assert api.trouble == ""

    asyncio.run(work())
    assert [re.findall(r"not now \((\d+)\)", reason) for reason in heard] == [["503"], ["429"]]


@contextlib.asynccontextmanager
async def watches(*answers: bytes) -> AsyncIterator[KubeApi]:
    """A server without objects, that answers each watch after a while, and hangs up."""
    script = iter(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        text = next(script)
        await asyncio.sleep(QUIET_S)
        await response.write(text)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with served(answer) as api:
        yield api


@contextlib.asynccontextmanager
async def served(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
    *,
    handler_cancellation: bool = False,
) -> AsyncIterator[KubeApi]:
    """A server whose requests are all answered by one function."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=handler_cancellation)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        access = ClusterAccess(server=f"http://127.0.0.1:{port}", tls=None, tokens=static_token())
        async with KubeApi(access) as api:
            yield api
    finally:
        await runner.cleanup()


def test_silence_of_a_watch_is_no_lack_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared_pathways_service.kube.watch._LAST_PAUSE_S", QUIET_S / 2)

    async def work() -> None:
        path = paths.collection("pods", "n")
        async with (
            watches(b"", b"", NEWS) as api,
            watched(api, path, give_up_after_s=QUIET_S / 2) as watching,
        ):
            assert await watching.until_synced() == []
            assert await watching.next() == ("ADDED", "a")

    asyncio.run(work())


def test_streams_that_break_without_a_change_do_not_end_a_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.kube.test_broken_ways.QUIET_S", 0.2)

    async def work() -> None:
        path = paths.collection("pods", "n")
        answers = b"", b"", BOOKMARK, b"", b"", NEWS
        async with watches(*answers) as api, watched(api, path, give_up_after_s=0.1) as told:
            assert await told.until_synced() == []
            while (change := await told.next()) == ("SYNCED", ""):
                pass
            assert change == ("ADDED", "a")

    asyncio.run(work())


@pytest.mark.parametrize("line", [b"<html>\n", b"[]\n", b'{"kind": "Status"}\n'])
def test_a_watch_that_is_answered_by_something_else(line: bytes) -> None:
    async def work() -> None:
        path = paths.collection("pods", "n")
        async with watches(line, NEWS) as api, watched(api, path) as watching:
            assert await watching.until_synced() == []
            assert await watching.next() == ("ADDED", "a")
        async with watches(line) as api, watched(api, path, give_up_after_s=0.0) as watching:
            await watching.until_synced()
            with pytest.raises(ApiUnreachable, match="no event; is there a proxy"):
                await watching.next()

    asyncio.run(work())


class Failing:
    """API servers on loopback, and names, that a client cannot use."""

    def __init__(self, servers: Background) -> None:
        authority = Authority("corp")
        self.authority = authority.certificate
        now = datetime.datetime.now(datetime.UTC)
        month = datetime.timedelta(days=30)
        certificates = {
            "expired": authority.issue("api", hosts=["127.0.0.1"], at=now - month),
            "not yet valid": authority.issue("api", hosts=["127.0.0.1"], at=now + month),
            "another name": authority.issue("api", hosts=["api.corp.test"]),
            "another authority": Authority("other").issue("api", hosts=["127.0.0.1"]),
            "without TLS": None,
        }
        self.urls = {
            name: f"https://127.0.0.1:{servers.enter(recording_server(certificate)).port}"
            for name, certificate in certificates.items()
        }
        self.urls["unknown name"] = "https://api.corp.invalid:6443"
        # (The name is https, and the rest its path.)
        self.urls["twice"] = "https://https://127.0.0.1:6443"


@pytest.mark.parametrize(
    ("way", "said", "hint"),
    [
        ("expired", "certificate verify failed: certificate has expired", "this machine's clock"),
        ("not yet valid", "certificate verify failed: certificate is not yet valid", "clock"),
        ("another name", "certificate verify failed: IP address mismatch", ""),
        ("another authority", "certificate verify failed: ", "certificate-authority-data"),
        ("without TLS", "TLS failed: what answers there does not speak TLS", ""),
        ("unknown name", "cannot resolve the name api.corp.invalid: ", "VPN"),
        ("twice", "cannot resolve the name https: ", "VPN"),
    ],
)
def test_a_server_that_cannot_be_reached_is_explained(
    monkeypatch: pytest.MonkeyPatch, way: str, said: str, hint: str
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def ask(failing: Failing) -> None:
        access = ClusterAccess(
            server=failing.urls[way],
            tls=client_tls(authority=failing.authority),
            tokens=static_token(),
        )
        async with KubeApi(access) as api, api.stream("/version", within_s=deadline(60.0)):
            pass

    with background() as servers, pytest.raises(ApiUnreachable) as caught:
        asyncio.run(ask(Failing(servers)))
    assert f": {said}" in caught.value.message
    assert "object at" not in caught.value.message
    assert (hint in caught.value.hint) if hint else caught.value.hint == ""
