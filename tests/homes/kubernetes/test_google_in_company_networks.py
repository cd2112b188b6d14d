"""Each of Google's endpoints behind a company's authority and proxy, by each variable.

The servers are stand-ins with TLS. Google Cloud's metadata server has none, and no proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from fsspec.config import conf as fsspec_conf

from harness.deadlines import deadline
from harness.object_stores import BUCKET, object_store
from harness.patience import patience
from shared_pathways_service.agent import cloud_monitoring
from shared_pathways_service.agent.cloud_monitoring import CloudMonitoring, Delayed, Unavailable
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.homes.kubernetes import sent_files
from shared_pathways_service.homes.kubernetes.sent_files import download, upload
from shared_pathways_service.kube import gke, tls
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.kube.google_tokens import GoogleUser
from shared_pathways_service.session.cloud_metrics import METRICS, Reading
from shared_pathways_service.testing.google import FakeGoogle
from shared_pathways_service.testing.google_monitoring import FakeMonitoring
from tests.kube.background import Background, background
from tests.kube.certificates import Authority
from tests.kube.proxies.network_proxies import ForwardingProxy, http_proxy, socks_proxy
from tests.kube.recording_server import server_context
from tests.kube.relay import tls_before

# gcsfs sends what is smaller than 5 MiB as one piece of bytes.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")

#: A name that only the proxies resolve, for loopback.
HOST = "google.corp.test"
PROJECT = "fake-project"
VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY", "GRPC_PROXY", "REQUEST_METHOD")


@dataclasses.dataclass(frozen=True)
class World:
    """Google's endpoints of this machine; all have certificates of one authority."""

    directory: Path
    servers: Background
    authority: Authority
    google: FakeGoogle
    certificate: tuple[str, str]
    storage_port: int

    def lead(self, patch: pytest.MonkeyPatch, host: str) -> None:
        """Leads this process to the endpoints, by a name or an address."""
        credentials = self.directory / "credentials.json"
        self.google.write_credentials(credentials)
        credentials.write_text(credentials.read_text().replace("127.0.0.1", host))
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
        for variable, url in {
            gke.ENDPOINT_VARIABLE: self.google.url,
            "STORAGE_EMULATOR_HOST": f"https://127.0.0.1:{self.storage_port}",
        }.items():
            patch.setenv(variable, url.replace("127.0.0.1", host))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # (Without key identifiers: Python 3.13 refuses it by default.)
    authority = Authority("corp")
    certificate = authority.issue("google", hosts=["127.0.0.1", HOST])
    context = server_context(certificate)
    with (
        background() as servers,
        object_store("gs") as variables,
        FakeGoogle(new_token=lambda: "given", tls=context) as google,
    ):
        emulator = int(variables["STORAGE_EMULATOR_HOST"].rpartition(":")[2])
        yield World(
            directory=tmp_path_factory.mktemp("google"),
            servers=servers,
            authority=authority,
            google=google,
            certificate=certificate,
            storage_port=servers.enter(tls_before(emulator, context)),
        )


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *PROXIES, "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def get_a_token(_: World) -> None:
    assert await GoogleUser().tokens.header() == "Bearer given"


async def look_up_a_cluster(_: World) -> None:
    choice = ClusterChoice(cluster="c", project="p", region="r")
    with pytest.raises(InvalidRequestError, match="there are: none"):
        await resolve(choice)


async def write_metrics(world: World) -> None:
    host = urlsplit(os.environ[gke.ENDPOINT_VARIABLE]).hostname
    metrics = CloudMonitoring(project=PROJECT, labels={})
    with (
        FakeMonitoring(PROJECT, certificate=world.certificate) as fake,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(cloud_monitoring.ENDPOINT_VARIABLE, fake.url.replace("127.0.0.1", str(host)))
        try:
            await metrics.write([Reading(metric=METRICS[0], value=1)], time.time())
        finally:
            await metrics.close()
        assert len(fake.points) == 1


async def send_files(world: World) -> None:
    archive, received = world.directory / "archive", world.directory / "received"
    archive.write_bytes(b"files")
    await download(await upload(archive, f"gs://{BUCKET}"), received)
    assert received.read_bytes() == b"files"


ENDPOINTS: list[Callable[[World], Awaitable[None]]] = [
    get_a_token,
    look_up_a_cluster,
    write_metrics,
    send_files,
]


def trust(setting: str, world: World, patch: pytest.MonkeyPatch) -> None:
    """Names the company's authority, by a variable or in the system's store."""
    bundle = world.directory / "bundle.pem"
    note = "# Főtanúsítvány\n".encode()
    bundle.write_bytes(note + world.authority.certificate.encode())
    if setting == "system":
        places = SimpleNamespace(
            cafile=None,
            capath=None,
            openssl_cafile_env="SSL_CERT_FILE",
            openssl_capath_env="SSL_CERT_DIR",
        )
        patch.setattr(ssl, "get_default_verify_paths", lambda: places)
        patch.setattr(tls, "_SYSTEM_BUNDLES", (str(bundle),))
        return
    variable, _, kind = setting.partition(" ")
    patch.setenv(variable, str(hashed(bundle) if kind else bundle))


def hashed(bundle: Path) -> Path:
    """Returns a directory with a bundle, as `openssl rehash` makes it."""
    directory = bundle.with_name("hashed")
    directory.mkdir(exist_ok=True)
    subject = x509.load_pem_x509_certificate(bundle.read_bytes()).subject.public_bytes()
    digest = hashlib.sha1(subject[2:]).digest()
    (directory / f"{int.from_bytes(digest[:4], 'little'):08x}.0").write_bytes(bundle.read_bytes())
    return directory


def by_name(item: object) -> str:
    return getattr(item, "__name__", str(item))


@pytest.mark.parametrize("way", ["direct", "proxy"])
@pytest.mark.parametrize(
    "setting",
    [
        "SSL_CERT_FILE",
        "SSL_CERT_DIR directory",
        "REQUESTS_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE directory",
        "system",
    ],
)
@pytest.mark.parametrize("use", ENDPOINTS, ids=by_name)
def test_each_endpoint_trusts_the_company(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[World], Awaitable[None]],
    setting: str,
    way: str,
) -> None:
    trust(setting, world, monkeypatch)
    if way == "direct":
        world.lead(monkeypatch, "127.0.0.1")
        asyncio.run(within_a_minute(use(world)))
        return
    with proxy_of(monkeypatch) as proxy:
        world.lead(monkeypatch, HOST)
        asyncio.run(within_a_minute(use(world)))
        assert {place.partition(":")[0] for place in proxy.asked} == {HOST}


async def within_a_minute(work: Awaitable[None]) -> None:
    async with asyncio.timeout(deadline(60.0)):
        await work


@contextlib.contextmanager
def proxy_of(
    patch: pytest.MonkeyPatch, *, login: tuple[str, str] | None = None, url: str = ""
) -> Iterator[ForwardingProxy]:
    """Runs a proxy that HTTPS_PROXY names."""
    with background() as servers:
        is_socks = url.startswith("socks")
        made = socks_proxy({HOST: "127.0.0.1"}) if is_socks else None
        proxy = servers.enter(made or http_proxy({HOST: "127.0.0.1"}, login=login))
        patch.setenv("HTTPS_PROXY", (url or "http://127.0.0.1:{port}").format(port=proxy.port))
        yield proxy


@pytest.mark.parametrize("use", ENDPOINTS, ids=by_name)
def test_a_proxy_with_a_login(
    world: World, monkeypatch: pytest.MonkeyPatch, use: Callable[[World], Awaitable[None]]
) -> None:
    trust("SSL_CERT_FILE", world, monkeypatch)
    url = "http://ada:p%40%2Fss@127.0.0.1:{port}"
    with proxy_of(monkeypatch, login=("ada", "p@/ss"), url=url) as proxy:
        world.lead(monkeypatch, HOST)
        asyncio.run(within_a_minute(use(world)))
        assert proxy.asked


@pytest.mark.parametrize("use", [get_a_token, look_up_a_cluster, send_files], ids=by_name)
def test_a_socks_proxy(
    world: World, monkeypatch: pytest.MonkeyPatch, use: Callable[[World], Awaitable[None]]
) -> None:
    trust("SSL_CERT_FILE", world, monkeypatch)
    with proxy_of(monkeypatch, url="socks5://127.0.0.1:{port}") as proxy:
        world.lead(monkeypatch, HOST)
        asyncio.run(within_a_minute(use(world)))
        assert proxy.asked


@pytest.mark.parametrize("use", ENDPOINTS, ids=by_name)
def test_hosts_of_no_proxy_are_reached_directly(
    world: World, monkeypatch: pytest.MonkeyPatch, use: Callable[[World], Awaitable[None]]
) -> None:
    trust("SSL_CERT_FILE", world, monkeypatch)
    with proxy_of(monkeypatch) as proxy:
        # (gRPC knows no networks in this variable.)
        monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
        world.lead(monkeypatch, "127.0.0.1")
        asyncio.run(within_a_minute(use(world)))
        assert not proxy.asked


def error_of(world: World, use: Callable[[World], Awaitable[None]]) -> str:
    """Returns the text of the error, with its hint."""
    with pytest.raises((SharedPathwaysError, Delayed, Unavailable)) as caught:
        asyncio.run(within_a_minute(use(world)))
    return f"{caught.value}\n{getattr(caught.value, 'hint', '')}"


@pytest.mark.parametrize("use", ENDPOINTS, ids=by_name)
def test_an_unknown_authority_is_refused_with_the_variables_that_name_one(
    world: World, monkeypatch: pytest.MonkeyPatch, use: Callable[[World], Awaitable[None]]
) -> None:
    world.lead(monkeypatch, "127.0.0.1")
    text = error_of(world, use)
    assert re.search("(?i)certificate.verify.failed", text)
    assert tls.UNTRUSTED_HINT in text


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("forbidden", "403"),
        ("login", "407"),
        ("closed", "connection refused|Connection refused"),
        ("hang up", "disconnected|closed"),
    ],
)
@pytest.mark.parametrize("use", ENDPOINTS, ids=by_name)
def test_a_proxy_that_refuses_is_named_with_its_variable(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[World], Awaitable[None]],
    failure: str,
    said: str,
) -> None:
    trust("SSL_CERT_FILE", world, monkeypatch)
    with proxy_of(monkeypatch, login=("ada", "p") if failure == "login" else None) as proxy:
        world.lead(monkeypatch, HOST)
        proxy.failure = failure
        port = proxy.port
        if failure == "closed":
            port = 1
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        # (A cluster is looked for until its time is over.)
        with patience(0.3):
            text = error_of(world, use)
    assert f"the proxy http://127.0.0.1:{port} (set by HTTPS_PROXY)" in text
    assert re.search(said, text)


def test_a_proxy_that_refuses_only_the_files_is_named_with_its_variable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        async with sent_files._opened(f"gs://{BUCKET}/any") as (store, _):
            # (gcsfs tries for more than half a minute.)
            await store.session.get(store.base)

    # (As FSSPEC_GCS_TOKEN does, which is read once.)
    monkeypatch.setitem(fsspec_conf, "gcs", {"token": "anon"})
    with proxy_of(monkeypatch) as proxy:
        world.lead(monkeypatch, HOST)
        proxy.failure = "forbidden"
        with pytest.raises(sent_files._NoAnswerError) as caught:
            asyncio.run(within_a_minute(ask()))
    named = f"the proxy http://127.0.0.1:{proxy.port} (set by HTTPS_PROXY)"
    assert str(caught.value) == f"{named} answered 403 Forbidden"


def test_metrics_name_a_proxy_that_grpc_cannot_use(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy_of(monkeypatch, url="socks5://127.0.0.1:{port}") as proxy:
        world.lead(monkeypatch, HOST)
        text = error_of(world, write_metrics)
    assert f"not through socks5://127.0.0.1:{proxy.port} (set by HTTPS_PROXY)" in text
    assert f"add {HOST}" in text
    assert "NO_PROXY" in text
