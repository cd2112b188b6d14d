"""Stand-ins for machines: programs below one see another boot, host name and processes.

They share all files with this machine, also a home, and its network. A machine here is process 1 of
a PID namespace; with it the kernel kills all that runs on the machine, as when its power fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from harness.deadlines import deadline
from harness.fork_server.entered import IN_DIRECTORY, SPACES
from harness.processes import REPOSITORY

__all__ = ["Machine", "is_possible", "machine"]

_DEADLINE_S = deadline(60.0)
#: Sets the name, and hides what the kernel and the system say of this machine.
_SET_UP = """
hostname "$1"
mount --bind "$2" /proc/sys/kernel/random/boot_id
if [ -e /etc/machine-id ]; then mount --bind "$3" /etc/machine-id; fi
echo up
exec cat
"""


def _unshare() -> list[str]:
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *own_user, *spaces]


def is_possible() -> bool:
    """Returns whether this user may make namespaces."""
    if not all(map(shutil.which, ("unshare", "nsenter", "mount", "hostname"))):
        return False
    done = subprocess.run([*_unshare(), "true"], check=False, capture_output=True)
    return done.returncode == 0


class Machine:
    """A machine that runs; use `machine`.

    Attributes:
      name: Its host name.
    """

    def __init__(self, name: str, holder: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._holder = holder
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        own_user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        self._enter = ["nsenter", f"--target={children[0]}", *own_user, *SPACES]

    def prefix(self, directory: Path = REPOSITORY) -> list[str]:
        """Returns the beginning of a command that runs on it, in a directory."""
        # (Of a command with this prefix, the fork server of tests knows how to start it.)
        return [*self._enter, *IN_DIRECTORY, str(directory)]

    def rename(self, name: str) -> None:
        """Gives it another host name, below all that runs on it."""
        subprocess.run([*self.prefix(), "hostname", name], check=True, timeout=_DEADLINE_S)
        self.name = name

    def fail(self) -> None:
        """Ends all that runs on it, at once."""
        self._holder.kill()
        self._holder.wait(_DEADLINE_S)


@contextlib.contextmanager
def machine(name: str, scratch: Path) -> Iterator[Machine]:
    """Runs a machine for the length of the block.

    Args:
      name: Its host name, which also decides its machine id; another boot of it has another block.
      scratch: A directory for its files.
    """
    boot, identity = scratch / f"{name}.boot", scratch / f"{name}.machine-id"
    boot.write_text(f"{uuid.uuid4()}\n")
    identity.write_text(f"{uuid.uuid5(uuid.NAMESPACE_DNS, name).hex}\n")
    command = [*_unshare(), "sh", "-ec", _SET_UP, "sh", name, str(boot), str(identity)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n", "it does not start"
            yield Machine(name, holder)
        finally:
            holder.kill()
