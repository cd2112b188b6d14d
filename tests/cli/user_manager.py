"""A real `systemd --user`, in namespaces of its own: process 1 of this system is none."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.processes import DEADLINE_S, REPOSITORY

__all__ = ["UserManager", "is_possible", "user_manager"]

_NAMESPACES = ("unshare", "--mount", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc")
_MANAGERS = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
#: It takes this for a system that systemd has booted, with a control group for each unit.
#: (As process 1 it would take itself for the system's.)
_SET_UP = """
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR"
mount -t cgroup2 none /sys/fs/cgroup
echo up
"$1" --user &
wait
"""


class UserManager:
    """One that runs; use `user_manager`."""

    def __init__(self, holder: int, environment: dict[str, str]) -> None:
        children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
        self._enter = ["nsenter", f"--target={children[0]}", "--mount", "--pid", "--cgroup"]
        self._environment = environment

    def run(self, *command: str, fails: bool = False) -> str:
        """Runs a command beside it, which succeeds unless it `fails`; returns what it printed."""
        done = subprocess.run(
            [*self._enter, "sh", "-c", 'cd "$0" && exec "$@"', str(REPOSITORY), *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env=self._environment,
        )
        assert fails is (done.returncode != 0), done
        return done.stdout

    def value(self, unit: str, name: str) -> str:
        """Returns a property of a unit."""
        return self.run("systemctl", "--user", "show", "--value", f"-p{name}", unit).strip()


def is_possible() -> bool:
    """Returns whether systemd is here, and this user may give it namespaces."""
    programs = ("unshare", "nsenter", "mount", "systemctl", "systemd-analyze")
    return all(map(shutil.which, programs)) and bool(_manager()) and os.geteuid() == 0


def _manager() -> str:
    return next((path for path in _MANAGERS if Path(path).exists()), "")


@contextlib.contextmanager
def user_manager(home: Path) -> Iterator[UserManager]:
    """Runs one for the length of the block; with it all ends that it started.

    Args:
      home: The user's home; units are read below its `.config`.
    """
    environment = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": "/run/user/test"}
    environment.pop("XDG_CONFIG_HOME", None)
    command = [*_NAMESPACES, "sh", "-ec", _SET_UP, "sh", _manager()]
    log = home / "manager.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as holder,
    ):
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "up\n", log.read_text()
            manager = UserManager(holder.pid, environment)
            # (It has started its default target.)
            manager.run("sh", "-c", _WAIT)
            yield manager
        finally:
            holder.kill()


_WAIT = """
until [ -S "$XDG_RUNTIME_DIR/systemd/private" ]; do sleep 0.1; done
systemctl --user is-system-running --wait >/dev/null || true
"""
