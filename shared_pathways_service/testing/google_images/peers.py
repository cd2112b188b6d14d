"""How the stand-ins' servers recognize each other, which this project's clients cannot imitate."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Final

__all__ = ["SECRET", "credentials", "token_file"]

#: It guards against mistakes of this project's clients, not against attacks.
SECRET: Final = "of-the-stand-ins"  # noqa: S105
_PLAINTEXT: Final = "plaintext"
_ALTS: Final = "alts"
_OVERRIDE: Final = ("PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS", "grpc_insecure_override")


def credentials(environment: Mapping[str, str]) -> str:
    """Returns which gRPC credentials a server uses towards the other servers."""
    name, value = _OVERRIDE
    return _PLAINTEXT if environment.get(name) == value else _ALTS


@contextlib.contextmanager
def token_file() -> Iterator[tuple[str, int]]:
    """Makes a file with this server's token; it leaves nothing behind, even after a kill.

    Yields:
      Its path, and the descriptor that the process that reads it must inherit.
    """
    descriptor = os.memfd_create("token")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, f"{SECRET};{credentials(os.environ)}".encode())
        yield f"/proc/self/fd/{descriptor}", descriptor
    finally:
        os.close(descriptor)
