"""Creates one certificate authority per testbed, and one certificate for all its servers."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

__all__ = ["Certificates", "make_certificates"]

_LIFE = datetime.timedelta(days=30)
_FOR_SIGNING = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificates:
    """Key and certificate files (PEM): clients trust `authority`, all servers have `certificate`.

    The API server signs the tokens of service accounts with `account_key`.
    """

    authority: Path
    certificate: Path
    key: Path
    account_key: Path
    account_public_key: Path


def make_certificates(directory: Path) -> Certificates:
    """Creates all keys and certificates of a testbed, in files that only its user can read."""
    files = Certificates(
        authority=directory / "ca.crt",
        certificate=directory / "tls.crt",
        key=directory / "tls.key",
        account_key=directory / "accounts.key",
        account_public_key=directory / "accounts.pub",
    )
    authority_key = ec.generate_private_key(ec.SECP256R1())
    of_authority = [x509.BasicConstraints(ca=True, path_length=0), _FOR_SIGNING]
    authority = _sign("testbed", authority_key.public_key(), authority_key, of_authority)
    key = ec.generate_private_key(ec.SECP256R1())
    here = x509.SubjectAlternativeName(
        [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
            x509.DNSName("localhost"),
        ]
    )
    certificate = _sign("server", key.public_key(), authority_key, [here])
    _write(files.authority, authority.public_bytes(serialization.Encoding.PEM))
    _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    _write(files.key, _private(key))
    account = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write(files.account_key, _private(account))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = account.public_key().public_bytes(serialization.Encoding.PEM, form)
    _write(files.account_public_key, public)
    return files


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _sign(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: Sequence[x509.ExtensionType],
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("testbed"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # One machine has one clock, but setting it back must not invalidate the certificate.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(of_issuer, critical=False)
    )
    for extension in extensions:
        # Strict clients require this to be critical in an authority, and only there.
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, hashes.SHA256())


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, serialization.NoEncryption())


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
