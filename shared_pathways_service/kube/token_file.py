"""A token from a file that another process, e.g. a kubelet, keeps valid."""

from __future__ import annotations

import time
from pathlib import Path

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.tokens import Token, TokenSource

__all__ = ["token_file"]

#: Seconds until the file is read again; a kubelet renews a token long before it expires.
_READ_AGAIN_S = 60.0


def token_file(path: Path) -> TokenSource:
    """Returns a source of the file's token.

    Args:
      path: The file; it is read again about every minute and when the token is refused.
    """

    async def fetch() -> Token:
        return Token(header=f"Bearer {_read(path)}", expires_at=time.time() + _READ_AGAIN_S)

    return TokenSource(fetch)


def _read(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _denied(f"cannot be read: {error}") from error
    if not text:
        raise _denied(f"is empty: {path}")
    return text


def _denied(what: str) -> AccessDenied:
    return AccessDenied(f"the token's file {what}", verb="connect", resource="cluster")
