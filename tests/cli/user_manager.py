"""A real `systemd --user`, on a stand-in for a machine that systemd has booted."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from harness.deadlines import wait_until
from harness.layers.needed_programs import needed_program
from harness.machines import Machine, machine
from harness.processes import DEADLINE_S

__all__ = ["UserManager", "user_manager"]

_MANAGERS = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
#: It takes this for a system that systemd has booted, with control groups below one of its own.
_SET_UP = """
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR"
mount -t cgroup2 none /sys/fs/cgroup
mkdir "/sys/fs/cgroup/$2"
echo $$ > "/sys/fs/cgroup/$2/cgroup.procs"
exec unshare --cgroup sh -ec '
umount /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
echo up
exec "$0" --user
' "$1"
"""
_WAIT = """
until [ -S "$XDG_RUNTIME_DIR/systemd/private" ]; do sleep 0.1; done
systemctl --user is-system-running --wait >/dev/null || true
"""
_REMOVE = """
mount -t cgroup2 none /sys/fs/cgroup
find "/sys/fs/cgroup/$0" -depth -type d -exec rmdir {} +
"""


class UserManager:
    """One that runs; use `user_manager`."""

    def __init__(self, place: Machine, environment: dict[str, str]) -> None:
        self._place = place
        self._environment = environment

    def run(self, *command: str) -> str:
        """Runs a command beside it, which succeeds; returns what it printed."""
        done = subprocess.run(
            [*self._place.prefix(), *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env=self._environment,
        )
        assert done.returncode == 0, done
        return done.stdout

    def value(self, unit: str, name: str) -> str:
        """Returns a property of a unit."""
        return self.run("systemctl", "--user", "show", "--value", f"-p{name}", unit).strip()


def _manager() -> str:
    for path in _MANAGERS:
        if Path(path).exists():
            return path
    return str(needed_program("systemd", "install systemd"))


def _removes(group: str) -> bool:
    """Removes a control group and those below it; returns whether no process was left in them."""
    command = ["unshare", "--mount", "sh", "-ec", _REMOVE, group]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0 or "busy" in done.stderr, done
    return done.returncode == 0


@contextlib.contextmanager
def user_manager(home: Path) -> Iterator[UserManager]:
    """Runs one for the length of the block; with it all ends that it started.

    Args:
      home: The user's home; units are read below its `.config`.
    """
    for program in ("unshare", "nsenter", "mount", "systemctl"):
        needed_program(program, "install systemd and util-linux")
    group = f"sps-test-{uuid.uuid4().hex[:8]}"
    environment = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": "/run/user/test"}
    environment.pop("XDG_CONFIG_HOME", None)
    log = home / "manager.log"
    with machine("desk", home) as place, log.open("w") as errors:
        command = [*place.prefix(), "sh", "-ec", _SET_UP, "sh", _manager(), group]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as holder:
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == "up\n", log.read_text()
                manager = UserManager(place, environment)
                # (It has started its default target.)
                manager.run("sh", "-c", _WAIT)
                yield manager
            finally:
                place.fail()
                wait_until("the end of its processes", lambda: _removes(group))
