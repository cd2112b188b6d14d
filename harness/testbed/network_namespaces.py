"""A network namespace for a client, in which every packet can be dropped."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.fork_server.c_library import enter_namespace
from harness.testbed.ways import loopback_listener

__all__ = ["NetworkNamespace", "network_namespace", "why_unavailable"]

#: Its loopback interface is up until standard input ends.
_HOLDER = "ip link set lo up && echo up && exec cat"
_CLONE_NEWNET = 0x40000000
#: No packet fits into a bucket of one byte.
_DROP_ALL = ("tbf", "rate", "8bit", "burst", "1", "limit", "1")
_DROPPED = re.compile(r"dropped (\d+)")


class NetworkNamespace:
    """A network namespace with nothing but loopback; use `network_namespace`.

    Args:
      holder: The id of a process in it.

    Attributes:
      prefix: A command's prefix, to run it in this namespace.
    """

    def __init__(self, holder: int) -> None:
        self._path = f"/proc/{holder}/ns/net"
        self.prefix = ("nsenter", f"--net={self._path}", "--")

    def listener(self, port: int) -> socket.socket:
        """Is a `MakeListener`: its sockets accept connections of this namespace."""

        def make() -> socket.socket:
            with Path(self._path).open("rb") as namespace:
                enter_namespace(namespace.fileno(), self._path, _CLONE_NEWNET)
            return loopback_listener(port)

        # The thread stays in the namespace, so it is used for nothing else.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(make).result()

    def drop_packets(self) -> None:
        """Drops every packet from now on."""
        self._run("tc", "qdisc", "add", "dev", "lo", "root", *_DROP_ALL)

    def pass_packets(self) -> int:
        """Drops no more packets; returns how many were dropped."""
        shown = self._run("tc", "-s", "qdisc", "show", "dev", "lo")
        self._run("tc", "qdisc", "del", "dev", "lo", "root")
        found = _DROPPED.search(shown)
        assert found, shown
        return int(found[1])

    def _run(self, *command: str) -> str:
        done = subprocess.run([*self.prefix, *command], check=True, capture_output=True, text=True)
        return done.stdout


def why_unavailable() -> str:
    """Returns why this machine has no network namespaces for tests; empty: it has."""
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)}"
    if os.geteuid():
        return "needs root"
    try:
        with network_namespace() as made:
            made.drop_packets()
            made.pass_packets()
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        return f"network namespaces do not work here: {error}"
    return ""


@contextlib.contextmanager
def network_namespace() -> Iterator[NetworkNamespace]:
    """Makes a network namespace for the length of the block, and of this process.

    Raises:
      OSError: It cannot be made.
    """
    command: Sequence[str] = ("unshare", "--net", "sh", "-c", _HOLDER)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stderr
        if holder.stdout.readline() != "up\n":
            raise OSError(holder.stderr.read())
        try:
            yield NetworkNamespace(holder.pid)
        finally:
            holder.stdin.close()
