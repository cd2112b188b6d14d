"""TLS towards an API server."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

__all__ = ["client_tls", "show_certificate"]


def client_tls(*, authority: str = "", verify: bool = True) -> ssl.SSLContext:
    """Returns a context for connections to one server.

    Args:
      authority: PEM certificates of who signed the server's; empty: the system's.
      verify: False: any server is believed, as the user's kubeconfig says.

    Raises:
      ssl.SSLError: `authority` holds no certificate.
    """
    context = ssl.create_default_context(cadata=authority or None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if authority:
        # Clusters sign for themselves, often without the key identifiers that this flag (on by
        # default from Python 3.13 on) demands; kubectl does not ask for them either.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def show_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Makes later connections show a client's certificate.

    Args:
      context: Whose connections.
      certificate: PEM chain.
      key: PEM key.

    Raises:
      ssl.SSLError: They are not a certificate and its key.
    """
    # Python's ssl reads both from files only: theirs is private and gone at once.
    with tempfile.TemporaryDirectory(prefix="sps") as directory:
        path = Path(directory) / "certificate.pem"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{certificate}\n{key}\n")
        context.load_cert_chain(path)
