"""Certificates of a test's own."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=2)
_KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def new_key() -> tuple[str, str]:
    """Returns a new private key and its public one, as PEM."""
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return _pem(key), public.decode()


class Authority:
    """Who signs certificates; `certificate` is its own.

    If it `is_strict`, its certificates have key identifiers, which Python's ssl requires by
    default from 3.13 on.
    """

    def __init__(self, name: str, *, is_strict: bool = False) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self._name = _name(name)
        self._is_strict = is_strict
        builder = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        if is_strict:
            usage = dict.fromkeys(_KEY_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        signed = builder.sign(self._key, hashes.SHA256())
        self.certificate = signed.public_bytes(serialization.Encoding.PEM).decode()

    def issue(
        self,
        name: str,
        *,
        address: str = "",
        hosts: Sequence[str] = (),
        group: str = "",
        at: datetime.datetime | None = None,
    ) -> tuple[str, str]:
        """Returns a certificate and its key, as PEM: a server's with an address or hosts.

        Hosts are names or addresses. It is valid for days around a moment; None: now.
        """
        key = rsa.generate_private_key(65537, 2048)
        builder = self._builder(_name(name, group), key.public_key(), at)
        names = [_general_name(host) for host in (address, *hosts) if host]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        else:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(usage, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode(), _pem(key)

    def _builder(
        self, subject: x509.Name, key: rsa.RSAPublicKey, at: datetime.datetime | None = None
    ) -> x509.CertificateBuilder:
        now = at or datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFE)
            .not_valid_after(now + _LIFE)
        )
        if not self._is_strict:
            return builder
        issuer = self._key.public_key()
        return builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key), critical=False
        ).add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(name: str, group: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if group:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
