"""How the stand-ins' servers recognize each other: by a secret that clients do not have."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

__all__ = ["SECRET", "secret_file"]

#: It guards against mistakes of this project's clients, not against attacks.
SECRET: Final = "of-the-stand-ins"  # noqa: S105


@contextlib.contextmanager
def secret_file() -> Iterator[tuple[str, int]]:
    """Makes a file with the secret that leaves nothing behind, even when this process is killed.

    Yields:
      Its path, and the descriptor that who reads it must inherit.
    """
    descriptor = os.memfd_create("peers")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, SECRET.encode())
        yield f"/proc/self/fd/{descriptor}", descriptor
    finally:
        os.close(descriptor)
