"""The runtime directory of a running service: its lock and tokens, and what if it is lost.

A logout may remove it, a cleaner of temporary files empty it, and its user may do both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from shared_pathways_service.runtime.embedded import state_file
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.service_lock import ServiceLock

__all__ = ["ServiceDirectory"]

#: Seconds between two looks at it, and between two touches of its files, which cleaners judge by
#: their age.
_LOOK_S = 2.0
_TOUCH_INTERVAL_S = 3600.0


class ServiceDirectory:
    """The runtime directory of one service.

    Args:
      paths: Its files.
      token: The service's token, which it writes there beside that of proxies.
    """

    def __init__(self, paths: RuntimePaths, token: str) -> None:
        self._paths = paths
        self._tokens = {paths.token: token, paths.tenant_token: secrets.token_urlsafe(32)}
        self._lock: ServiceLock | None = None

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Has the directory to itself for the length of the block; raises as `claim` does."""
        with state_file.claim(self._paths) as self._lock:
            self._write_tokens()
            yield

    def is_lost(self) -> bool:
        """Whether it is not this service's any more."""
        return self._lock is None or self._lock.is_lost()

    async def lost(self, *, write_state: Callable[[], object]) -> Path:
        """Waits until something is lost that the service cannot do without; returns it.

        A socket cannot be put back. Small files are, for example after a cleaner.
        """
        loop = asyncio.get_running_loop()
        touched_at = loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.is_lost():
                return self._paths.directory
            if not self._paths.supervisor_socket.exists():
                return self._paths.supervisor_socket
            # (On a full disk the next look tries again.)
            with contextlib.suppress(OSError):
                self._write_tokens()
                if not self._paths.state.exists():
                    write_state()
                if loop.time() - touched_at >= _TOUCH_INTERVAL_S:
                    touched_at = loop.time()
                    self._touch()

    def _write_tokens(self) -> None:
        for path, token in self._tokens.items():
            if not path.exists():
                state_file.write_private(path, token.encode())

    def _touch(self) -> None:
        for path in self._paths.directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)
