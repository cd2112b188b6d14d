"""Boots of the machines of `stress.shared_home`, and sessions on them."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import time
from pathlib import Path

from harness.deadlines import wait_until
from harness.embedded import KIND
from harness.machines import machine
from harness.processes import REPOSITORY
from harness.programs import DEADLINE_S, Program
from shared_pathways_service.runtime.settings import Settings

__all__ = ["Boot", "Session"]

#: Computes until it is told to end.
_SESSION = f"""
stop = threading.Event()
def listen():
    sys.stdin.readline()
    stop.set()
threading.Thread(target=listen, daemon=True).start()
slices = {{"{KIND}": 1}}
with isc_pathways.connect(expected_tpu_instances=slices, queue_timeout=600) as connection:
    import jax.numpy as jnp
    say("runs", name=connection.proxy_job_name, pid=os.getpid())
    while not stop.wait(0.1):
        assert float(jnp.arange(8.0).sum()) == 28.0
say("ended")
"""


class Boot:
    """One boot of a machine, until `fail`.

    Args:
      name: The machine's host name.
      scratch: A directory for the machine's files.

    Attributes:
      boot_id: The boot's id.
      has_failed: Whether it has ended, or is just ending.
    """

    def __init__(self, name: str, scratch: Path) -> None:
        self.name = name
        self.has_failed = False
        self._stack = contextlib.ExitStack()
        self._machine = self._stack.enter_context(machine(name, scratch))
        self.boot_id = (scratch / f"{name}.boot").read_text().strip()
        self._namespace = self.run("readlink", "/proc/self/ns/pid").stdout.strip()
        #: When each kill began and had happened.
        self._kills: list[list[float]] = []

    def prefix(self, directory: Path = REPOSITORY) -> list[str]:
        """Returns the beginning of a command that runs on it, in a directory."""
        return self._machine.prefix(directory)

    def run(self, *words: str, directory: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
        """Runs a command on it."""
        return subprocess.run(
            [*self.prefix(directory), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )

    def was_disturbed(self, since: float, until: float = math.inf) -> bool:
        """Whether its service was killed, or it failed, between two moments."""
        return any(since <= end and begin <= until for begin, end in [*self._kills])

    def kill_service(self) -> bool:
        """Kills the supervisor; returns whether there was one."""
        for path in Settings.load().runtime_dir.glob("*/state.json"):
            with contextlib.suppress(OSError, ValueError):
                supervisor = json.loads(path.read_bytes())["supervisor"]
                if supervisor["start"].startswith(f"{self.boot_id}/"):
                    return self._kill(str(supervisor["pid"]))
        return False

    def _kill(self, pid: str) -> bool:
        kill = [time.time(), math.inf]
        self._kills.append(kill)
        done = self.run("kill", "-9", pid)
        kill[1] = time.time()
        return done.returncode == 0

    def fail(self) -> None:
        """Ends all that runs on it, at once; returns once it has ended."""
        self.has_failed = True
        self._kills.append([time.time(), math.inf])
        self._machine.fail()
        wait_until("the end of a machine", lambda: not self._processes())
        self._stack.close()

    def _processes(self) -> list[str]:
        """Returns the ids of its processes."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str((path / "ns" / "pid").readlink()) == self._namespace:
                    found.append(path.name)
        return found


class Session:
    """A session on a machine, which computes."""

    def __init__(self, boot: Boot) -> None:
        self.boot = boot
        #: Its name once it runs.
        self.name = ""
        self._pid = 0
        self._began = time.time()
        self._is_told = False
        self._program = Program(_SESSION, prefix=boot.prefix())

    def begin(self) -> str:
        """Waits until it computes; returns why it has failed, unless that was to be expected."""
        try:
            said = self._program.expect("runs")
        except AssertionError as error:
            self._program.close()
            return self._why(str(error))
        self.name, self._pid = said["name"], said["pid"]
        return ""

    @property
    def is_certain(self) -> bool:
        """Whether it must run, as nothing was done that may have ended it."""
        return bool(self.name) and not self._is_told and not self.boot.was_disturbed(self._began)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended or failed."""
        return self._program.has_said

    def end(self) -> str:
        """Tells it to end; returns why it has failed, unless that was to be expected."""
        self._is_told = True
        try:
            with contextlib.suppress(OSError):
                self._program.tell("end")
            self._program.expect("ended")
            code = self._program.wait()
        except AssertionError as error:
            return self._why(str(error))
        finally:
            self._program.close()
        return self._why(f"exit code {code}") if code else ""

    def kill(self) -> None:
        """Kills its program; its agent removes what is left."""
        self._is_told = True
        self.boot.run("kill", "-9", str(self._pid))
        self._program.close()

    def _why(self, error: str) -> str:
        if self.boot.was_disturbed(self._began):
            return ""
        return f"a session {self.name} of {self.boot.name}, which lived, failed: {error[-3000:]}"
