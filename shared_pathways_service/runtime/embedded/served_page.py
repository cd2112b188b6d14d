"""The address of the page that shows the embedded service, while a process serves it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import write_private
from shared_pathways_service.runtime.processes import Identity, identity_of

__all__ = ["served_page", "serving_page"]


def served_page(directory: Path) -> str | None:
    """Returns the address of the page, with its token; None: no process of this user serves one.

    A file that a killed process has left is not believed: its port may be another program's now.

    Args:
      directory: The runtime directory.
    """
    try:
        found = json.loads(RuntimePaths(directory).page.read_bytes())
        url, server = found["url"], Identity.from_json(found["server"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return url if isinstance(url, str) and server.is_alive() else None


@contextlib.contextmanager
def serving_page(directory: Path, url: str) -> Iterator[None]:
    """Lets `served_page` find an address during the block; the latest page is the one it finds.

    Args:
      directory: The runtime directory, which is private.
      url: The address, with its token: only this user can read the file.
    """
    path = RuntimePaths(directory).page
    data = json.dumps({"url": url, "server": identity_of().to_json()}).encode()
    write_private(path, data)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            # (A later page has replaced it, and goes on.)
            if path.read_bytes() == data:
                path.unlink()
