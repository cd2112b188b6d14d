"""TLS contexts for connections to an API server."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

__all__ = ["client_tls", "show_certificate"]


def client_tls(*, authority: str = "", verify: bool = True) -> ssl.SSLContext:
    """Returns a context for connections to one server.

    Args:
      authority: PEM certificates of the server's authority; empty: the system's authorities.
      verify: False: trust any server, if the user's kubeconfig says so.

    Raises:
      ssl.SSLError: `authority` contains no certificate.
    """
    context = ssl.create_default_context(cadata=authority or None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if authority:
        # Clusters have authorities of their own, often without the key identifiers that this flag
        # (on by default from Python 3.13 on) requires; kubectl does not require them either.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def show_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Makes later connections present a client certificate, a PEM chain with its PEM key.

    Raises:
      ssl.SSLError: They are not a certificate and its key.
    """
    # Python's ssl reads both from files only: the file is private and removed at once.
    with tempfile.TemporaryDirectory(prefix="sps") as directory:
        path = Path(directory) / "certificate.pem"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{certificate}\n{key}\n")
        context.load_cert_chain(path)
