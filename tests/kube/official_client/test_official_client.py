"""Access of the official client: what reaches a server is what the official client itself sends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from kubernetes.client import ApiClient, Configuration

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube import given_access
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.given_access import access_of
from shared_pathways_service.kube.handed_over import Login
from shared_pathways_service.kube.official_client import handed_over, login_of
from tests.kube.background import Background
from tests.kube.certificates import Authority
from tests.kube.official_client.support import (
    NAME,
    PODS,
    ask_ours,
    carried,
    seen_of_both,
    unasked,
)
from tests.kube.proxies.network_proxies import ForwardingProxy, http_proxy
from tests.kube.recording_server import RecordingServer, recording_server

#: Changes a configuration, or returns a client of it.
SetUp = Callable[[Configuration], "ApiClient | None"]


@pytest.fixture
def configuration(
    server: RecordingServer, authority: Authority, own_directories: Path
) -> Configuration:
    bundle = own_directories / "ca.crt"
    bundle.write_text(authority.certificate)
    made = Configuration(host=f"https://127.0.0.1:{server.port}/prefix")
    made.ssl_ca_cert = str(bundle)
    made.retries = False
    return made


def _token(c: Configuration) -> None:
    c.api_key = {"authorization": "Bearer one"}


def _prefix(c: Configuration) -> None:
    c.api_key, c.api_key_prefix = {"authorization": "one"}, {"authorization": "Bearer"}


def _other_name(c: Configuration) -> None:
    c.api_key, c.api_key_prefix = {"BearerToken": "YTpi"}, {"BearerToken": "Basic"}


def _hook(c: Configuration) -> None:
    def renew(configuration: Configuration) -> None:
        configuration.api_key["authorization"] = "Bearer from the hook"

    c.api_key["authorization"] = "Bearer old"
    c.refresh_api_key_hook = renew


def _impersonation(c: Configuration) -> ApiClient:
    _token(c)
    client = ApiClient(c, header_name="Impersonate-User", header_value="alice", cookie="a=b")
    client.set_default_header("Impersonate-Group", "staff")
    return client


def _default_header(c: Configuration) -> ApiClient:
    return ApiClient(c, header_name="authorization", header_value="Bearer by header")


def _default_header_and_token(c: Configuration) -> ApiClient:
    _token(c)
    return ApiClient(c, header_name="authorization", header_value="Bearer by header")


def _server_name(c: Configuration) -> None:
    c.tls_server_name = NAME


def _no_verification(c: Configuration) -> None:
    c.ssl_ca_cert, c.verify_ssl = None, False


def _pem(c: Configuration) -> None:
    c.ca_cert_data, c.ssl_ca_cert = Path(c.ssl_ca_cert).read_text(), None


def _der(c: Configuration) -> None:
    found = x509.load_pem_x509_certificate(Path(c.ssl_ca_cert).read_bytes())
    c.ca_cert_data, c.ssl_ca_cert = found.public_bytes(Encoding.DER), None


def _password_without_effect(c: Configuration) -> None:
    c.api_key = {"something-else": "x"}


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize(
    "set_up",
    [
        lambda _: None,
        *(_token, _prefix, _other_name, _hook, _impersonation, _default_header),
        *(_default_header_and_token, _server_name, _no_verification, _pem, _der),
        _password_without_effect,
    ],
)
def test_the_same_reaches_the_server(
    server: RecordingServer, configuration: Configuration, set_up: SetUp
) -> None:
    assert seen_of_both(server, set_up(configuration) or configuration).headers is not None


def test_a_client_certificate_and_its_successor(
    server: RecordingServer,
    configuration: Configuration,
    authority: Authority,
    own_directories: Path,
) -> None:
    certificate, key = own_directories / "tls.crt", own_directories / "tls.key"
    configuration.cert_file, configuration.key_file = str(certificate), str(key)

    def write(name: str) -> None:
        for path, text in zip((certificate, key), authority.issue(name), strict=True):
            path.write_text(text)

    write("alice")
    assert seen_of_both(server, configuration).client == "alice"
    found = carried(configuration)
    write("bob")

    async def ask() -> Login:
        return login_of(configuration)

    async def get() -> None:
        access = access_of(found, ask)
        for _ in range(2):
            async with KubeApi(access) as api:
                await api.get(PODS)
            access.tokens.refused("")
        # A key that is not written yet is asked for again.
        written = key.read_text()
        key.write_text("")
        with pytest.raises(AccessDenied, match="cert_file of api_client"):
            await access.tokens.header()
        key.write_text(written)
        await access.tokens.header()

    asyncio.run(get())
    assert [seen.client for seen in server.seen] == ["alice", "bob"]
    # The key may be in the file of the certificate.
    certificate.write_text(certificate.read_text() + key.read_text())
    configuration.key_file = None
    server.seen.clear()
    assert seen_of_both(server, configuration).client == "bob"


@pytest.fixture
def proxy(servers: Background) -> ForwardingProxy:
    return servers.enter(http_proxy({NAME: "127.0.0.1"}, login=("a", "b")))


def test_a_proxy_with_its_headers(
    server: RecordingServer, configuration: Configuration, proxy: ForwardingProxy
) -> None:
    configuration.host = f"https://{NAME}:{server.port}"
    configuration.proxy = f"http://127.0.0.1:{proxy.port}"
    configuration.proxy_headers = {"Proxy-Authorization": "Basic YTpi"}
    seen_of_both(server, configuration)
    assert proxy.asked == [f"{NAME}:{server.port}"] * 2
    # A loopback address, too, where the program names the proxy itself.
    configuration.host = f"https://127.0.0.1:{server.port}"
    seen_of_both(server, configuration)
    assert len(proxy.asked) == 4
    for exempt in ("127.0.0.0/8", f"127.0.0.1:{server.port}", "*"):
        configuration.no_proxy = exempt
        seen_of_both(server, configuration)
    assert len(proxy.asked) == 4
    configuration.no_proxy = None
    configuration.proxy_headers = {"Proxy-Authorization": "Basic wrong"}
    with pytest.raises(ApiUnreachable, match=r"proxy of api_client.* answered 407"):
        ask_ours(configuration, timeout_s=2.0)


def test_a_proxy_of_the_environment(
    server: RecordingServer,
    configuration: Configuration,
    proxy: ForwardingProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"http://a:b@127.0.0.1:{proxy.port}"
    monkeypatch.setenv("HTTPS_PROXY", url)
    named = Configuration(host=f"https://{NAME}:{server.port}")
    assert named.proxy == url
    named.ssl_ca_cert = configuration.ssl_ca_cert
    ask_ours(named)
    assert proxy.asked == [f"{NAME}:{server.port}"]
    # The program has none, although the environment names one.
    configuration.proxy = None
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    named.host, named.proxy = configuration.host, None
    ask_ours(named)
    found = carried(named)
    assert (found.is_direct, found.proxy) == (True, "")


def test_a_host_that_is_not_compared(
    servers: Background, authority: Authority, configuration: Configuration
) -> None:
    other = servers.enter(recording_server(authority.issue("api", hosts=["other.test"])))
    configuration.host = f"https://127.0.0.1:{other.port}"
    with pytest.raises(ApiUnreachable, match="certificate"):
        ask_ours(configuration)
    configuration.assert_hostname = False
    seen_of_both(other, configuration)
    # The authority still counts.
    Path(configuration.ssl_ca_cert).write_text(Authority("else").certificate)
    with pytest.raises(ApiUnreachable, match="certificate"):
        ask_ours(configuration)


def test_a_plain_server_gets_no_credentials(servers: Background) -> None:
    plain = servers.enter(recording_server(None))
    configuration = Configuration(host=f"http://127.0.0.1:{plain.port}")
    configuration.api_key["authorization"] = "Bearer secret"
    ask_ours(configuration)
    assert plain.seen[0].headers == ()


def test_files_are_read_at_once(
    server: RecordingServer, configuration: Configuration, own_directories: Path
) -> None:
    found = carried(configuration)
    Path(configuration.ssl_ca_cert).unlink()

    async def get() -> None:
        async with KubeApi(access_of(found, unasked)) as api:
            await api.get(PODS)

    asyncio.run(get())
    assert len(server.seen) == 1


def set_value(name: str, value: Any) -> Callable[[Configuration], None]:
    return lambda configuration: setattr(configuration, name, value)


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("username", SECRET),
        ("password", SECRET),
        ("access_token", SECRET),
        ("proxy_ssl_context", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)),
        ("assert_hostname", "other.test"),
        ("assert_hostname", True),
        ("ssl_ca_cert", "/no/such/file"),
        ("ca_cert_data", b"\x30\x03hunter2"),
        ("ca_cert_data", 7),
        ("cert_file", "/no/such/file"),
        ("tls_server_name", 7),
        ("proxy", "ftp://proxy.test"),
        ("proxy", "http://u:hunter2@:99999"),
        ("api_key", {"authorization": f"Bearer {SECRET}\r\nX: y"}),
        ("api_key", {"authorization": b"Bearer hunter2"}),
        ("api_key", {"authorization": "Bearer hunter2\u00e9"}),
        ("host", "127.0.0.1:6443"),
        ("host", "https://u:hunter2@api.test"),
        ("host", "https://api.test?hunter2"),
        ("host", "https://api.test:0"),
    ],
)
def test_a_field_that_cannot_be_carried_over_is_named(
    field: str, value: object, configuration: Configuration
) -> None:
    setattr(configuration, field, value)
    with pytest.raises(InvalidRequestError) as caught:
        handed_over(configuration)
    assert caught.value.field == f"{field} of api_client"
    assert SECRET not in str(caught.value.to_json())


def test_headers_that_cannot_be_carried_over(
    configuration: Configuration, own_directories: Path
) -> None:
    client = ApiClient(configuration, header_name="X-Secret", header_value=f"{SECRET}\n")
    with pytest.raises(InvalidRequestError) as caught:
        handed_over(client)
    assert caught.value.field == "default_headers['X-Secret'] of api_client"
    assert SECRET not in str(caught.value)
    configuration.proxy, configuration.proxy_headers = "socks5://127.0.0.1:1", {"a": "b"}
    with pytest.raises(InvalidRequestError, match="SOCKS") as caught:
        handed_over(configuration)
    assert caught.value.field == "proxy_headers of api_client"
    configuration.proxy = configuration.proxy_headers = None
    for name in ("cert_file", "ssl_ca_cert"):
        bad = own_directories / name
        bad.write_text(SECRET)
        setattr(configuration, name, str(bad))
        with pytest.raises(InvalidRequestError) as caught:
            handed_over(configuration)
        assert caught.value.field == f"{name} of api_client"
        assert SECRET not in str(caught.value.to_json())


def test_a_hook_that_fails(configuration: Configuration) -> None:
    def fail(_: Configuration) -> None:
        raise LookupError("no identity provider")

    configuration.api_key["authorization"] = "Bearer old"
    configuration.refresh_api_key_hook = fail
    with pytest.raises(AccessDenied, match="LookupError: no identity provider") as caught:
        handed_over(configuration)
    assert (caught.value.verb, caught.value.resource) == ("connect", "cluster")


def test_secrets_are_in_no_text(configuration: Configuration) -> None:
    configuration.api_key["authorization"] = f"Bearer {SECRET}"
    configuration.proxy = f"http://u:{SECRET}@127.0.0.1:1"
    configuration.proxy_headers = {"x": SECRET}
    client = ApiClient(configuration, header_name="X-Secret", header_value=SECRET)
    assert SECRET not in repr(handed_over(client))
    assert SECRET not in repr(access_of(handed_over(client), unasked))


def test_the_last_token_counts_until_it_is_refused(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_access, "_ASK_INTERVAL_S", 0.0)
    configuration.api_key["authorization"] = "Bearer one"
    answer: Login | Exception = AccessDenied("the program has ended", verb="connect")
    asked = 0

    async def ask() -> Login:
        nonlocal asked
        asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def test() -> None:
        nonlocal answer
        tokens = access_of(carried(configuration), ask).tokens
        assert await tokens.header() == "Bearer one"
        assert asked == 0
        assert [await tokens.header() for _ in range(2)] == ["Bearer one"] * 2
        # (It does not ask a program that has ended for each request.)
        assert asked == 1
        tokens.refused("Bearer one")
        with pytest.raises(AccessDenied, match="the program has ended"):
            await tokens.header()
        answer = Login(header="Bearer two")
        assert await tokens.header() == "Bearer two"
        # Each interval it asks again, as a token may end before a server refuses it.
        answer = Login(header="Bearer three")
        assert await tokens.header() == "Bearer three"

    asyncio.run(test())
