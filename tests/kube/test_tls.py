"""Certificates in the forms in which companies have them, by real handshakes in memory."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube import tls
from shared_pathways_service.kube.tls import client_tls, show_certificate
from tests.kube.certificates import Authority
from tests.kube.recording_server import server_context

HOST = "api.corp.test"
BROKEN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("corp")


@pytest.fixture(scope="module")
def server(authority: Authority) -> tuple[str, str]:
    return authority.issue("api", hosts=[HOST])


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str = HOST) -> ssl.SSLObject:
    """Returns the server's side after a handshake.

    Raises:
      ssl.SSLError: A side does not accept the other's certificate.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return sides[1]


def accepts(client: ssl.SSLContext, server: tuple[str, str]) -> bool:
    try:
        handshake(client, server_context(server))
    except ssl.SSLCertVerificationError:
        return False
    return True


@pytest.mark.parametrize(
    "form",
    [
        lambda text: text,
        lambda text: text.encode(),
        lambda text: f"# Főtanúsítvány, Autorité\n{text}# ende\n".encode(),
        lambda text: "# Autorité\n".encode("latin-1") + text.encode(),
        lambda text: f"# Főtanúsítvány\n{text}",
        lambda text: text.encode("utf-16"),
        lambda text: "\ufeff".encode() + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\n  ").encode(),
        lambda text: (BROKEN + text).encode(),
        lambda text: (Authority("other").certificate + text + text).encode(),
        lambda text: text.replace("CERTIFICATE", "X509 CERTIFICATE").encode(),
    ],
    ids=range(12),
)
def test_forms_of_a_bundle(authority: Authority, server: tuple[str, str], form: object) -> None:
    assert callable(form)
    assert accepts(client_tls(authority=form(authority.certificate)), server)


@pytest.mark.parametrize(
    "text",
    [b"\x30\x82\x01", b"no certificate", BROKEN.encode(), BROKEN.replace("AAAA", "é").encode()],
)
def test_what_is_no_bundle(text: bytes) -> None:
    with pytest.raises(ssl.SSLError):
        client_tls(authority=text)


def test_another_authority_is_refused(server: tuple[str, str]) -> None:
    assert not accepts(client_tls(authority=Authority("other").certificate), server)
    assert accepts(client_tls(authority=Authority("other").certificate, verify=False), server)


class Chain:
    """Certificates as old company authorities make them: without any identifiers of keys."""

    def __init__(self) -> None:
        self.root_key, self.root = self.issue("root", None, is_authority=True)
        self.middle_key, self.middle = self.issue("middle", (self.root_key, self.root), True)
        self.key, self.leaf = self.issue(HOST, (self.middle_key, self.middle))

    def issue(
        self,
        name: str,
        issuer: tuple[rsa.RSAPrivateKey, x509.Certificate] | None,
        is_authority: bool = False,
    ) -> tuple[rsa.RSAPrivateKey, x509.Certificate]:
        key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer[1].subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(0x7F << 64)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        if is_authority:
            # (Not critical, and no key usage.)
            constraints = x509.BasicConstraints(ca=True, path_length=None)
            builder = builder.add_extension(constraints, critical=False)
        else:
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
            builder = builder.add_extension(names, critical=False)
        return key, builder.sign(issuer[0] if issuer else key, hashes.SHA256())

    def server(self) -> tuple[str, str]:
        """Returns the certificates that the server sends, and its key."""
        key = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        return pem(self.leaf) + pem(self.middle), key.decode()


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def with_negative_serial(certificate: x509.Certificate, issuer: rsa.RSAPrivateKey) -> str:
    """Returns the certificate with the sign of its serial number changed, signed again."""
    body = certificate.tbs_certificate_bytes
    serial = b"\x7f" + bytes(8)
    assert body.count(serial) == 1
    changed = body.replace(serial, b"\xff" + bytes(8))
    signature = issuer.sign(changed, padding.PKCS1v15(), hashes.SHA256())
    whole = certificate.public_bytes(serialization.Encoding.DER)
    return ssl.DER_cert_to_PEM_cert(
        whole.replace(body, changed).replace(certificate.signature, signature)
    )


def test_authorities_that_kubectl_accepts() -> None:
    chain = Chain()
    server = chain.server()
    trusted = {
        "without key identifiers": pem(chain.root),
        "an intermediate one": pem(chain.middle),
        "the server's own certificate": pem(chain.leaf),
        "with a negative serial number": with_negative_serial(chain.root, chain.root_key),
    }
    for what, text in trusted.items():
        assert accepts(client_tls(authority=text), server), what
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(client_tls(authority=pem(chain.root)), server_context(server), "other.test")


def test_the_systems_authorities(
    own_directories: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: tuple[str, str],
    authority: Authority,
) -> None:
    assert not accepts(client_tls(), server)
    own_directories.mkdir(exist_ok=True)
    bundle = own_directories / "bundle.pem"
    bundle.write_text(pem(Chain().root) + authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert accepts(client_tls(), server)
    # Whoever names an authority does not trust the system's.
    assert not accepts(client_tls(authority=Authority("other").certificate), server)


@pytest.fixture
def bundles(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for bundles; no variable of OpenSSL names any."""
    own_directories.mkdir(exist_ok=True)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    return own_directories


def test_a_python_whose_openssl_knows_no_authorities(
    bundles: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: tuple[str, str],
    authority: Authority,
) -> None:
    bundle, empty = bundles / "bundle.pem", bundles / "empty"
    bundle.write_text(authority.certificate)
    empty.mkdir()
    places = SimpleNamespace(
        cafile=None,
        capath=str(empty),
        openssl_cafile_env="SSL_CERT_FILE",
        openssl_capath_env="SSL_CERT_DIR",
    )
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: places)
    monkeypatch.setattr(tls, "_SYSTEM_BUNDLES", ("/no/such/bundle", str(bundle)))
    assert accepts(client_tls(), server)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundles / "missing"))
    assert not accepts(client_tls(), server)


def test_the_variable_of_requests(
    bundles: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: tuple[str, str],
    authority: Authority,
) -> None:
    bundle, other = bundles / "bundle.pem", bundles / "other.pem"
    bundle.write_bytes("# Főtanúsítvány\n".encode() + authority.certificate.encode())
    other.write_text(Authority("other").certificate)
    system = len(client_tls().get_ca_certs())
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    assert accepts(client_tls(), server)
    # The system's authorities count still, as they do for kubectl.
    assert len(client_tls().get_ca_certs()) == system + 1
    # Whoever names an authority does not trust the company's.
    assert not accepts(client_tls(authority=other.read_text()), server)
    # The variables that kubectl knows count alone.
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    assert not accepts(client_tls(), server)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert accepts(client_tls(), server)


def test_a_directory_in_the_variable_of_requests(
    bundles: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: tuple[str, str],
    authority: Authority,
) -> None:
    bundle = bundles / "bundle.pem"
    bundle.write_text(authority.certificate)
    # (The name as `openssl rehash` makes it, of a subject that is canonical.)
    subject = x509.load_pem_x509_certificate(bundle.read_bytes()).subject.public_bytes()
    digest = hashlib.sha1(subject[2:]).digest()
    hashed = f"{int.from_bytes(digest[:4], 'little'):08x}"
    bundle.rename(bundles / f"{hashed}.0")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundles))
    assert accepts(client_tls(), server)


@pytest.mark.parametrize("content", [None, "no certificates", BROKEN])
def test_a_variable_of_requests_that_names_no_certificates(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    bundle = bundles / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    with pytest.raises(InvalidRequestError) as caught:
        client_tls()
    assert (caught.value.field, caught.value.value) == ("REQUESTS_CA_BUNDLE", str(bundle))


def client_name(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    shown = handshake(client, server).getpeercert()
    assert shown is not None
    return str(dict(part[0] for part in shown["subject"])["commonName"])  # type: ignore[misc]


def test_forms_of_a_client_certificate(authority: Authority, server: tuple[str, str]) -> None:
    certificate, key = authority.issue("alice")
    clients = server_context(server, authority.certificate)
    forms: list[tuple[str | bytes, str | bytes]] = [
        (certificate, key),
        (f"# Főtanúsítvány\n{certificate}".encode(), "# clé\n".encode("latin-1") + key.encode()),
        (key + certificate, key + certificate),
        (certificate.encode("utf-16"), key.replace("\n", "\r\n")),
        (certificate + authority.certificate, "-----BEGIN EC PARAMETERS-----\n" + key),
    ]
    for chain, own in forms:
        client = client_tls(authority=authority.certificate)
        show_certificate(client, chain, own)
        assert client_name(client, clients) == "alice"


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("", "own", "no PEM certificate"),
        ("own", "", "no PEM private key"),
        ("own", "other", "(?i)key.values.mismatch"),
        ("own", "encrypted", "encrypted"),
        ("own", "encrypted as long ago", "encrypted"),
    ],
)
def test_client_certificates_that_are_none(
    authority: Authority, certificate: str, key: str, said: str
) -> None:
    own = authority.issue("alice")
    secret = serialization.load_pem_private_key(own[1].encode(), None)
    keys = {
        "own": own[1],
        "other": authority.issue("bob")[1],
        "": "",
        **{
            name: secret.private_bytes(
                serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"secret")
            ).decode()
            for name, form in {
                "encrypted": serialization.PrivateFormat.PKCS8,
                "encrypted as long ago": serialization.PrivateFormat.TraditionalOpenSSL,
            }.items()
        },
    }
    with pytest.raises(ssl.SSLError, match=said):
        show_certificate(client_tls(), own[0] if certificate else "", keys[key])
