"""Connections through real proxies: requests, watches, port-forwards, tokens; and their errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import deadline
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.gke import ENDPOINT_VARIABLE
from shared_pathways_service.kube.google_tokens import GoogleUser
from shared_pathways_service.kube.kubeconfig import access_of_context, read_kubeconfig
from shared_pathways_service.testing.google import FakeGoogle
from shared_pathways_service.tunnel.websocket_upgrade import upgraded
from tests.kube.background import Background, background
from tests.kube.certificates import Authority
from tests.kube.kubeconfigs import encoded
from tests.kube.proxies.network_proxies import http_proxy, socks_proxy
from tests.kube.recording_server import RecordingServer, recording_server, server_context

#: A name that only the proxies resolve, for loopback.
API = "api.corp.test"
NAMES = {API: "127.0.0.1"}
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "REQUEST_METHOD")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with background() as made:
        yield made


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("corp")


@pytest.fixture
def api_server(servers: Background, authority: Authority) -> RecordingServer:
    certificate = authority.issue("api", address="127.0.0.1", hosts=[API])
    return servers.enter(recording_server(certificate))


@pytest.fixture
def connected(
    own_directories: Path, authority: Authority
) -> Callable[..., contextlib.AbstractAsyncContextManager[KubeApi]]:
    """Opens a client by a kubeconfig with these fields of the cluster."""

    def connect(server: str, **fields: Any) -> contextlib.AbstractAsyncContextManager[KubeApi]:
        cluster = {"certificate-authority-data": encoded(authority.certificate), **fields}
        document = {
            "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        own_directories.mkdir(exist_ok=True)
        path = own_directories / "kubeconfig"
        path.write_text(json.dumps(document))
        return KubeApi(access_of_context(read_kubeconfig([path]), "x"))

    return connect


Connect = Callable[..., contextlib.AbstractAsyncContextManager[KubeApi]]


def free_port() -> int:
    """Returns a port that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


async def get(opened: contextlib.AbstractAsyncContextManager[KubeApi], timeout_s: float) -> Any:
    async with opened as api:
        return await api.get("/api/v1/pods", timeout_s=timeout_s)


async def try_once(opened: contextlib.AbstractAsyncContextManager[KubeApi]) -> None:
    """Sends a request that is not tried again."""
    async with opened as api, api.stream("/api/v1/pods", within_s=deadline(60.0)):
        pass


class Received(asyncio.BufferedProtocol):
    """Takes over a connection."""

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 16)
        self._data: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended = asyncio.Event()

    def get_buffer(self, _: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self._data.put_nowait(bytes(self._buffer[:size]))

    def connection_lost(self, _: BaseException | None) -> None:
        self.ended.set()

    async def bytes(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            taken += await self._data.get()
        return taken


async def use_all(opened: contextlib.AbstractAsyncContextManager[KubeApi]) -> None:
    """Sends a request, reads a watch, and exchanges bytes over a port-forward."""
    async with opened as api, asyncio.timeout(deadline(60.0)):
        assert (await api.get("/api/v1/pods"))["items"] == []
        async with api.stream("/api/v1/pods", params={"watch": "1"}) as chunks:
            assert b'"ADDED"' in await anext(chunks)
        taken = await upgraded(
            lambda headers: api.upgrade("/api/v1/pods/p/portforward", headers=headers)
        )
        received = Received()
        transport, early = taken.hand_to(received)
        sent_from = transport.get_extra_info("socket")
        assert sent_from.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        # A frame with two bytes and a mask of zeros, and its echo, which has no mask.
        transport.write(b"\x82\x82\0\0\0\0hi")
        assert early + await received.bytes(4 - len(early)) == b"\x82\x02hi"
        transport.abort()
        await received.ended.wait()
        taken.lost(None)
        taken.close()


def proxy_of_kind(kind: str, servers: Background, authority: Authority) -> tuple[Any, str]:
    """Starts a proxy; returns it and its URL."""
    login = ("ada", "pä@ss") if kind.endswith("login") else None
    user = "ada:p%C3%A4%40ss@" if login else ""
    scheme = kind.removesuffix(" login")
    if scheme.startswith("socks"):
        made = servers.enter(socks_proxy(NAMES, login=login))
    else:
        tls = server_context(authority.issue("proxy", address="127.0.0.1"))
        made = servers.enter(http_proxy(NAMES, login=login, tls=tls if scheme == "https" else None))
    return made, f"{scheme}://{user}127.0.0.1:{made.port}"


@pytest.mark.parametrize("setting", ["HTTPS_PROXY", "https_proxy", "proxy-url"])
@pytest.mark.parametrize(
    "kind", ["http", "http login", "https", "socks5", "socks5 login", "socks5h"]
)
def test_all_kinds_of_requests_go_through_the_proxy(
    servers: Background,
    authority: Authority,
    api_server: RecordingServer,
    connected: Connect,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    setting: str,
) -> None:
    proxy, url = proxy_of_kind(kind, servers, authority)
    fields = {}
    if setting == "proxy-url":
        fields["proxy-url"] = url
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", "*")
    else:
        monkeypatch.setenv(setting, url)
    asyncio.run(use_all(connected(f"https://{API}:{api_server.port}", **fields)))
    assert set(proxy.asked) == {f"{API}:{api_server.port}"}
    assert [seen.target.partition("?")[0] for seen in api_server.seen] == [
        "/api/v1/pods",
        "/api/v1/pods",
        "/api/v1/pods/p/portforward",
    ]
    for seen in api_server.seen:
        assert seen.headers == (("authorization", "Bearer secret"),)
        assert seen.server_name == API


@pytest.mark.parametrize("kind", ["http", "socks5"])
def test_a_server_of_another_name_behind_a_proxy(
    servers: Background, authority: Authority, connected: Connect, kind: str
) -> None:
    certificate = authority.issue("api", hosts=["kubernetes.default"])
    server = servers.enter(recording_server(certificate))
    proxy, url = proxy_of_kind(kind, servers, authority)
    fields = {"proxy-url": url, "tls-server-name": "kubernetes.default"}
    asyncio.run(use_all(connected(f"https://127.0.0.1:{server.port}", **fields)))
    assert {seen.server_name for seen in server.seen} == {"kubernetes.default"}
    assert {seen.host for seen in server.seen} == {f"127.0.0.1:{server.port}"}
    assert set(proxy.asked) == {f"127.0.0.1:{server.port}"}
    with pytest.raises(ApiUnreachable, match="certificate") as caught:
        asyncio.run(get(connected(f"https://127.0.0.1:{server.port}", **{"proxy-url": url}), 30))
    assert caught.value.is_final


@pytest.mark.parametrize("kind", ["http", "socks5"])
def test_a_server_without_tls_behind_a_proxy(
    servers: Background,
    authority: Authority,
    connected: Connect,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    server = servers.enter(recording_server(None))
    proxy, url = proxy_of_kind(kind, servers, authority)
    monkeypatch.setenv("HTTP_PROXY", url)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    asyncio.run(get(connected(f"http://{API}:{server.port}/prefix"), deadline(30.0)))
    assert proxy.asked == [f"{API}:{server.port}"]
    assert server.seen[0].target == "/prefix/api/v1/pods"


@pytest.mark.parametrize(
    ("host", "no_proxy", "is_proxied"),
    [
        ("127.0.0.1", "", False),
        ("localhost", "", False),
        # (This machine, by an address that does not count as loopback.)
        ("0.0.0.0", "", True),
        ("0.0.0.0", "0.0.0.0/8", False),
        ("0.0.0.0", "0.0.0.0:{port}", False),
        ("0.0.0.0", "0.0.0.0:1", True),
        ("0.0.0.0", "x.test, *", False),
    ],
)
def test_servers_that_need_no_proxy(
    servers: Background,
    authority: Authority,
    connected: Connect,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    no_proxy: str,
    is_proxied: bool,
) -> None:
    certificate = authority.issue("api", hosts=[API])
    server = servers.enter(recording_server(certificate))
    proxy = servers.enter(http_proxy())
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("NO_PROXY", no_proxy.format(port=server.port))
    url = f"https://{host}:{server.port}"
    asyncio.run(use_all(connected(url, **{"tls-server-name": API})))
    assert bool(proxy.asked) == is_proxied
    assert len(server.seen) == 3


#: How a proxy fails, and the cause that the error gives; {proxy} is its URL with the setting.
FAILURES = [
    ("http", "", r"cannot connect to the proxy {proxy}: connection refused"),
    ("socks5", "", r"cannot connect to the proxy {proxy}: connection refused"),
    ("http", "forbidden", r"the proxy {proxy} answered 403 Forbidden"),
    ("http login", "", r"the proxy {proxy} answered 407 Proxy Authentication Required"),
    ("http", "hang up", r"Server disconnected, through the proxy {proxy}"),
    ("http", "silent", r"no answer within \S+ s, through the proxy {proxy}"),
    ("socks5", "refused", r"the proxy {proxy} answered: connection refused"),
    ("socks5", "forbidden", r"the proxy {proxy} answered: its rules do not allow the connection"),
    ("socks5 login", "", r"the proxy {proxy} needs a user and a password"),
    ("socks5", "hang up", r"the proxy {proxy} closed the connection"),
    ("socks5", "silent", r"no answer within \S+ s, through the proxy {proxy}"),
]


@pytest.mark.parametrize("setting", ["HTTPS_PROXY", "proxy-url"])
@pytest.mark.parametrize(("kind", "failure", "cause"), FAILURES)
def test_an_error_names_the_proxy_and_its_setting(
    servers: Background,
    authority: Authority,
    connected: Connect,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    failure: str,
    cause: str,
    setting: str,
) -> None:
    proxy, url = proxy_of_kind(kind, servers, authority)
    proxy.failure = failure
    url = re.sub(r"//.*@", "//", url)
    if failure == "" and "login" not in kind:
        url = f"{url.rpartition(':')[0]}:{free_port()}"
    fields, shown = {}, setting
    if setting == "proxy-url":
        fields["proxy-url"] = url
        shown = "proxy-url of cluster c"
    else:
        monkeypatch.setenv(setting, url)
    opened = connected(f"https://{API}:6443", **fields)
    with pytest.raises(ApiUnreachable) as caught:
        asyncio.run(get(opened, 0.5) if failure == "silent" else try_once(opened))
    named = cause.format(proxy=re.escape(f"{url} (set by {shown})"))
    start = re.escape(f"no answer from the API server at https://{API}:6443: ")
    assert re.search(f"{start}{named}$", caught.value.message)
    hint = "" if setting == "proxy-url" else f"if {API} needs no proxy, add it to NO_PROXY"
    assert caught.value.hint == hint


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_that_does_not_exist(
    connected: Connect, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://proxy.invalid:3128")
    with pytest.raises(ApiUnreachable) as caught:
        asyncio.run(try_once(connected(f"https://{API}:6443")))
    assert f"cannot connect to the proxy {scheme}://proxy.invalid:3128" in caught.value.message


def test_a_proxy_that_is_not_one_names_its_setting(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://corp")
    with pytest.raises(InvalidRequestError) as caught:
        asyncio.run(get(connected(f"https://{API}:6443"), 30))
    assert (caught.value.field, caught.value.value) == ("HTTPS_PROXY", "ftp://corp")
    with pytest.raises(InvalidRequestError) as caught:
        connected(f"https://{API}:6443", **{"proxy-url": "corp:3128"})
    assert (caught.value.field, caught.value.value) == ("proxy-url of cluster c", "corp:3128")


@pytest.mark.parametrize("kind", ["http", "socks5"])
def test_tokens_of_google_through_a_proxy(
    servers: Background,
    authority: Authority,
    own_directories: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    own_directories.mkdir(exist_ok=True)
    credentials = own_directories / "credentials.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
    proxy, url = proxy_of_kind(kind, servers, authority)

    async def token() -> str:
        return await GoogleUser().tokens.header()

    with FakeGoogle(new_token=lambda: "given") as google:
        monkeypatch.setenv(ENDPOINT_VARIABLE, google.url)
        google.write_credentials(credentials)
        text = credentials.read_text()
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        assert asyncio.run(token()) == "Bearer given"
        credentials.write_text(text.replace("127.0.0.1", API))
        monkeypatch.setenv("HTTP_PROXY", url)
        assert asyncio.run(token()) == "Bearer given"
        assert [place.partition(":")[0] for place in proxy.asked] == [API]
        monkeypatch.setenv("HTTP_PROXY", f"{kind}://127.0.0.1:{free_port()}")
        with pytest.raises(ApiUnreachable, match=r"\(set by HTTP_PROXY\): connection refused"):
            asyncio.run(token())
