"""Which authorities are trusted: by TLS contexts for API servers and Google, and by gRPC.

This is the only place that reads the system's authorities and the variables that name others.
"""

from __future__ import annotations

import codecs
import contextlib
import datetime
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shared_pathways_service.errors import InvalidRequestError

__all__ = [
    "UNTRUSTED_HINT",
    "client_tls",
    "hint_for",
    "show_certificate",
    "trusted_authorities",
]

#: What to do about a server whose certificate no trusted authority has signed.
UNTRUSTED_HINT = (
    "if your network decrypts connections, name its authority: "
    "REQUESTS_CA_BUNDLE=/path/to/bundle.pem, or SSL_CERT_FILE"
)


#: Blocks of PEM; Go also takes only these of a file, with any text between them.
_CERTIFICATE = re.compile(
    rb"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----.*?-----END \1-----", re.DOTALL
)
_KEY = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)
_ENCRYPTED = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")
#: The variable of the library requests, which companies set for Python programs.
_REQUESTS_BUNDLE = "REQUESTS_CA_BUNDLE"
#: The system's authorities where OpenSSL was not told of them when it was built, as that of a
#: Python from elsewhere (crypto/x509/root_linux.go and root_bsd.go of Go 1.26).
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def client_tls(*, authority: str | bytes = "", verify: bool = True) -> ssl.SSLContext:
    """Returns a context for connections to one server.

    Args:
      authority: PEM certificates of the server's authority, with any text between them; empty: the
        authorities of the variables SSL_CERT_FILE and SSL_CERT_DIR, or else the system's and those
        of REQUESTS_CA_BUNDLE.
      verify: False: trust any server, if the user's kubeconfig says so.

    Raises:
      ssl.SSLError: `authority` contains no certificate.
      InvalidRequestError: REQUESTS_CA_BUNDLE names no certificates.
    """
    if authority:
        context = ssl.create_default_context(cadata=_authorities(_encoded(authority)))
    else:
        # (This reads what the variables of OpenSSL name, or the places that it knows.)
        context = ssl.create_default_context()
        for place in _more_places():
            _add(context, place)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # Authorities of clusters and of companies often lack the key identifiers that the strict flag
    # (on by default from Python 3.13 on) requires, or are intermediate ones, which the other flag
    # (on from 3.13 on) permits. kubectl accepts both.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def show_certificate(context: ssl.SSLContext, certificate: str | bytes, key: str | bytes) -> None:
    """Makes later connections present a client certificate, a PEM chain with its PEM key.

    Raises:
      ssl.SSLError: They are not a certificate and its key.
    """
    chain = [found[0] for found in _CERTIFICATE.finditer(_encoded(certificate))]
    if not chain:
        raise ssl.SSLError("no PEM certificate in it")
    own = _KEY.search(_encoded(key))
    if own is None:
        raise ssl.SSLError("no PEM private key in it")
    if any(mark in own[0] for mark in _ENCRYPTED):
        raise ssl.SSLError("the private key is encrypted: there is no one to type its passphrase")
    # Python's ssl reads both from files only: the file is private and removed at once.
    with tempfile.TemporaryDirectory(prefix="sps") as directory:
        path = Path(directory) / "certificate.pem"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"\n".join([*chain, own[0], b""]))
        context.load_cert_chain(path)


def _encoded(text: str | bytes) -> bytes:
    """Returns PEM as ASCII, with other characters of comments replaced."""
    if isinstance(text, str):
        return text.encode()
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return text.decode("utf-16", errors="replace").encode()
    return text


def _authorities(text: bytes) -> str:
    """Returns the certificates of a bundle; raises ssl.SSLError if there are none."""
    return "\n".join(_certificates(text))


def _certificates(text: bytes) -> list[str]:
    """Returns the certificates that OpenSSL can read; Go skips others of a bundle, too."""
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    readable: list[str] = []
    failure = "no PEM certificate in it"
    for found in _CERTIFICATE.finditer(text):
        certificate = b"\n".join(line.strip() for line in found[0].splitlines()).decode("latin-1")
        try:
            trial.load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError, TypeError) as error:
            failure = str(error)
        else:
            readable.append(certificate)
    if not readable:
        raise ssl.SSLError(failure)
    return readable


def trusted_authorities() -> bytes:
    """Returns the certificates that `client_tls` trusts without an authority, as PEM.

    They are for libraries that take no context. Those that variables name come first: a library
    may stop at a certificate that it cannot read. Files without certificates are left out. Empty:
    this machine has none.
    """
    known = ssl.get_default_verify_paths()
    directories = os.environ.get(known.openssl_capath_env) or known.capath or ""
    places = [*reversed(list(_more_places())), known.cafile, *directories.split(os.pathsep)]
    found: dict[str, None] = {}
    for place in map(Path, filter(None, places)):
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            with contextlib.suppress(OSError):  # (also ssl.SSLError)
                found.update(dict.fromkeys(_certificates(_encoded(file.read_bytes()))))
    return "\n".join(found).encode()


def hint_for(error: BaseException | None, *, unknown: str = UNTRUSTED_HINT) -> str:
    """Returns what to do about a certificate that was refused; empty: that was not the cause.

    Args:
      error: The error, with its causes.
      unknown: What to do if no trusted authority has signed it.
    """
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            said = str(error)
            if "expired" in said or "not yet valid" in said:
                now = datetime.datetime.now(datetime.UTC)
                return f"renew it, or set this machine's clock, which says {now:%Y-%m-%d %H:%M} UTC"
            # (Others, as a wrong name, say what is wrong.)
            return unknown if "issuer" in said or "self" in said else ""
        error = error.__cause__ or error.__context__
    return ""


def _more_places() -> Iterator[str]:
    """Yields files and directories that count besides those that OpenSSL reads by itself.

    There are none if a variable of OpenSSL is set: as for kubectl, it counts alone.
    """
    known = ssl.get_default_verify_paths()
    if any(map(os.environ.get, (known.openssl_cafile_env, known.openssl_capath_env))):
        return
    if not known.cafile and not (known.capath and os.listdir(known.capath)):  # noqa: PTH208
        yield from [x for x in _SYSTEM_BUNDLES if os.access(x, os.R_OK)][:1]
    # kubectl does not know this variable: its authorities replace no others.
    if bundle := os.environ.get(_REQUESTS_BUNDLE):
        yield bundle


def _add(context: ssl.SSLContext, place: str) -> None:
    """Adds the authorities of a file or a directory."""
    bundle = Path(place)
    try:
        if bundle.is_dir():
            context.load_verify_locations(capath=bundle)
        else:
            context.load_verify_locations(cadata=_authorities(_encoded(bundle.read_bytes())))
    except OSError as error:  # (also ssl.SSLError)
        raise InvalidRequestError(
            _REQUESTS_BUNDLE, place, f"a file or a directory of PEM certificates, not: {error}"
        ) from error
