"""Decides who may read the page: pure functions about tokens, cookies, host names and headers."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

__all__ = [
    "HEADERS",
    "REFUSED_HOST",
    "REFUSED_TOKEN",
    "cookie_name",
    "is_own_host",
    "is_same_origin",
    "is_token",
    "refusal_page",
]

#: Names by which a browser reaches loopback. (The port is not compared: `ssh -L` may change it.)
_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})

#: Sent with every answer. Scripts and styles come from this server only, and no text can become
#: HTML or a script: Chromium refuses even the attempt (trusted types). Nothing is cached, framed,
#: or shown to another origin, and no address with the token is sent elsewhere.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Not allowed</title>
<h1>Not allowed</h1>
<p>{what}</p>
"""


def refusal_page(what: str) -> str:
    """Returns the page of a refusal, with HTML that says what to do."""
    return _PAGE.format(what=what)


REFUSED_TOKEN: Final = refusal_page(
    "This page needs the token of the <code>sps ui</code> that serves it. Open the whole "
    "address that the command printed, with <code>?token=…</code>. A new start of the command "
    "makes a new token."
)
REFUSED_HOST: Final = refusal_page(
    "This page is served on loopback only. Open it as <code>http://127.0.0.1</code> or "
    "<code>http://localhost</code> with the port and token that <code>sps ui</code> printed. "
    "Where a proxy of yours serves it, name its address: <code>sps ui --behind URL</code>."
)


def is_own_host(header: str, outer: str = "") -> bool:
    """Whether a ``Host`` header names loopback, or the host of the user's own proxy.

    Another name is a DNS rebinding attack: a foreign page whose name resolves to this machine.

    Args:
      header: The header.
      outer: The host by which a proxy serves the page, with a port if it has one; empty: none does.
    """
    try:
        return (bool(outer) and header.lower() == outer) or urlsplit(
            f"//{header}"
        ).hostname in _HOSTS
    except ValueError:
        return False


def is_same_origin(origin: str | None, host: str) -> bool:
    """Whether the ``Origin`` of a request is this host; a request may have none.

    The scheme is not compared: a proxy in between may have ended TLS.
    """
    return origin is None or origin in (f"http://{host}", f"https://{host}")


def is_token(shown: str | None, token: str) -> bool:
    """Whether a token was shown, in a time that does not depend on its text."""
    return shown is not None and hmac.compare_digest(shown.encode(errors="replace"), token.encode())


def cookie_name(port: int) -> str:
    """Returns the name of the server's cookie: browsers share cookies among all ports of a host."""
    return f"sps-ui-{port}"
