"""What the tests of attacks share: a server looked at from outside, before, amid and after."""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
from collections.abc import Iterator

import psutil

from harness.deadlines import wait_until
from shared_pathways_service.testing.attacks.peer import Peer

__all__ = ["Watched", "deaf"]

#: Connections and pipes that a server may have made for itself meanwhile.
_SOME_DESCRIPTORS = 8
#: Calls whose answers, however short, are more than a socket holds; and bytes that it holds surely:
#: of 208 KiB each write takes 768 at least, and may be of 20.
_MANY_CALLS, _HELD = 20_000, 1 << 12


class Watched:
    """A server's process, and what it held before it was attacked."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._resident = self._process.memory_info().rss
        self._descriptors = self._process.num_fds()

    @property
    def grown(self) -> int:
        """Bytes of memory that it has now more than before."""
        return int(self._process.memory_info().rss) - self._resident

    @property
    def descriptors(self) -> int:
        """How many it has now."""
        return int(self._process.num_fds())

    def wait_until_descriptors_are_back(self) -> None:
        """Waits until it has as many as before."""
        most = self._descriptors + _SOME_DESCRIPTORS
        try:
            wait_until(f"at most {most} descriptors", lambda: self.descriptors <= most)
        except AssertionError as error:
            error.add_note(f"{self.descriptors} now")
            raise


@contextlib.contextmanager
def deaf(address: str, path: str) -> Iterator[Peer]:
    """Yields a client that was sent more than its connection holds, and reads nothing of it.

    Args:
      address: Of the server; ``unix:/path``, as a socket of TCP holds megabytes.
      path: Of the method that it called.
    """
    with Peer(address, timeout_s=1.0) as peer:
        assert peer.want_all()
        for _ in range(_MANY_CALLS):
            # Some servers take no more before their answers are taken.
            if not peer.finish(peer.open(path)):
                break
        wait_until(f"more than {_HELD} unread bytes", lambda: _unread(peer) > _HELD)
        yield peer


def _unread(peer: Peer) -> int:
    (size,) = struct.unpack("i", fcntl.ioctl(peer, termios.FIONREAD, bytes(4)))
    return int(size)
