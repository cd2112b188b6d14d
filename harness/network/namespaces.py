"""Hosts as network namespaces, and programs that run with such a network of their own.

Nothing has a name in the system: a namespace and its device are gone with the last process in it.
All run below process 1 of a PID namespace, which ends when its owner does, and the kernel then
kills the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.fork_server.c_library import call, enter_namespace
from harness.network.switch import CLEAR, Condition, Switch

__all__ = ["Network", "end_with_owner", "is_possible", "mount_scratch", "network", "run_apart"]

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_TUN = Path("/dev/net/tun")
_PROGRAMS = ("unshare", "nsenter", "ip", "mount")
#: Any directory; what it contains is hidden from the processes in the namespaces.
_SCRATCH = Path("/mnt")
_UNSHARE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def is_possible() -> bool:
    """Returns whether this process may make namespaces and devices."""
    if not os.access(_TUN, os.W_OK) or not all(map(shutil.which, _PROGRAMS)):
        return False
    return not subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode


def run_apart(module: str, arguments: Sequence[str]) -> int:
    """Runs a module's program with namespaces of its own; returns its exit code.

    The module must call `end_with_owner`: then it ends with this process, and all that it
    started with it, also when this process is killed.
    """
    command = [*_UNSHARE, sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        return process.wait()


def end_with_owner(deadline_s: float) -> None:
    """Ends this process when standard input ends, or at the deadline."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    timer = threading.Timer(deadline_s, os._exit, (124,))
    timer.daemon = True
    timer.start()


def mount_scratch() -> Path:
    """Returns an empty directory in memory that only this process and its children see."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(_SCRATCH)], check=True)
    return _SCRATCH


class Network:
    """Hosts with the addresses 10.77.0.1 and so on; the first is this process's own namespace."""

    def __init__(self, switch: Switch, namespaces: Mapping[str, int]) -> None:
        self._switch = switch
        self._namespaces = dict(namespaces)
        self._numbers = {name: number for number, name in enumerate(namespaces, start=1)}

    def address(self, host: str) -> str:
        """Returns the address of a host."""
        return f"10.77.0.{self._numbers[host]}"

    def prefix(self, host: str) -> list[str]:
        """Returns the beginning of a command that runs on a host."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._namespaces[host]}"]

    def set(self, source: str, target: str, condition: Condition = CLEAR) -> None:
        """Sets the condition of one direction of a link."""
        leaves, reaches = (socket.inet_aton(self.address(host)) for host in (source, target))
        self._switch.set(leaves, reaches, condition)


@contextlib.contextmanager
def network(hosts: Sequence[str], *, seed: int = 0) -> Iterator[Network]:
    """Makes hosts and a switch between them; call it in a process that `run_apart` started."""
    namespaces: dict[str, int] = {}
    devices: dict[bytes, int] = {}
    with contextlib.ExitStack() as stack:
        for number, host in enumerate(hosts, start=1):
            if number > 1:
                call("unshare", _CLONE_NEWNET, subject=f"a network namespace for {host}")
            namespaces[host] = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            stack.callback(os.close, namespaces[host])
            address = f"10.77.0.{number}"
            devices[socket.inet_aton(address)] = _add_device(address)
        own = namespaces[hosts[0]]
        enter_namespace(own, f"the network namespace of {hosts[0]}", _CLONE_NEWNET)
        switch = stack.enter_context(Switch(devices, seed=seed))
        yield Network(switch, namespaces)


def _add_device(address: str) -> int:
    fd = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH14x", b"net0", _IFF_TUN | _IFF_NO_PI))
    for command in (
        ("addr", "add", f"{address}/24", "dev", "net0"),
        ("link", "set", "net0", "up"),
        ("link", "set", "lo", "up"),
    ):
        subprocess.run(["ip", *command], check=True)
    return fd
