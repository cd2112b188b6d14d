"""What the tests of attacks share: a server looked at from outside, before, amid and after."""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
import time
from collections.abc import Callable, Iterator

import psutil

from harness.processes import DEADLINE_S
from shared_pathways_service.testing.attacks.peer import Peer

__all__ = ["Watched", "deaf", "wait_until"]

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
        wait_until(
            lambda: self.descriptors <= self._descriptors + _SOME_DESCRIPTORS,
            lambda: f"{self._descriptors} descriptors before, {self.descriptors} now",
        )


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
        wait_until(lambda: _unread(peer) > _HELD, lambda: f"{_unread(peer)} bytes are unread")
        yield peer


def _unread(peer: Peer) -> int:
    (size,) = struct.unpack("i", fcntl.ioctl(peer, termios.FIONREAD, bytes(4)))
    return int(size)


def wait_until(condition: Callable[[], bool], text: Callable[[], str] = str) -> None:
    """Waits for what nothing tells of."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, text()
        time.sleep(0.01)
