"""Boots of the machines of `stress.shared_home`, and sessions on them."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path

from harness.deadlines import deadline, wait_until
from harness.machines import machine
from harness.processes import REPOSITORY
from harness.programs import Program, TookTooLongError
from shared_pathways_service.runtime.settings import Settings

__all__ = ["SPS", "Boot", "Session"]

#: The command `sps`.
SPS = (sys.executable, "-m", "shared_pathways_service.cli")
#: Seconds of a command or of a step of a session, which wait at most for the slices of a few short
#: jobs, and of each part of the report of one that took longer.
_WAIT_S = deadline(90.0)
_REPORT_S = deadline(10.0)
#: Computes until it is told to end.
_SESSION = """
say("begins", pid=os.getpid())
stop = threading.Event()
def listen():
    sys.stdin.readline()
    stop.set()
threading.Thread(target=listen, daemon=True).start()
with isc_pathways.connect(queue_timeout=600) as connection:
    import jax.numpy as jnp
    say("runs", name=connection.proxy_job_name)
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
        """Runs a command on it.

        Raises:
            TookTooLongError: It did not end; the text shows who has the slices.
        """
        try:
            return self._run(*words, directory=directory, seconds=_WAIT_S)
        except subprocess.TimeoutExpired:
            command = " ".join(words)[:300]
            raise TookTooLongError(
                f"`{command}` did not end in {_WAIT_S:.0f} s; {self.report()}"
            ) from None

    def report(self) -> str:
        """Returns who has its slices, and which processes run on it."""
        told = [f"on {self.name}:"]
        for words in (
            (*SPS, "status"),
            (*SPS, "list"),
            ("ps", "-eo", "pid,ppid,etimes,stat,args", "--width=200"),
        ):
            try:
                done = self._run(*words, seconds=_REPORT_S)
                told.append(done.stdout + done.stderr)
            except subprocess.TimeoutExpired:
                told.append(f"{' '.join(words)} did not end in {_REPORT_S:.0f} s")
        return "\n".join(told)

    def _run(
        self, *words: str, seconds: float, directory: Path = REPOSITORY
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix(directory), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
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
            self._pid = self._program.expect("begins", _WAIT_S)["pid"]
            self.name = self._program.expect("runs", _WAIT_S)["name"]
        except AssertionError as error:
            return self._why(error)
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
            self._program.expect("ended", _WAIT_S)
            code = self._program.wait(_WAIT_S)
            assert code == 0, f"exit code {code}"
        except AssertionError as error:
            return self._why(error)
        finally:
            self._program.close()
        return ""

    def kill(self) -> None:
        """Kills its program; its agent removes what is left."""
        self._is_told = True
        self.boot.run("kill", "-9", str(self._pid))
        self._program.close()

    def _why(self, error: AssertionError) -> str:
        """Returns why it has failed, unless that was to be expected; a hang never is."""
        hangs, text = isinstance(error, TookTooLongError), str(error)
        if hangs and self._pid and not self.boot.has_failed:
            # (Shows where its threads are.)
            self.boot.run("kill", "-ABRT", str(self._pid))
            with contextlib.suppress(AssertionError):
                self._program.wait(_REPORT_S)
            text += f"{''.join(self._program.stderr[-200:])}; {self.boot.report()}"
        self._program.close()
        if self.boot.was_disturbed(self._began) and not hangs:
            return ""
        return f"a session {self.name} of {self.boot.name}, which lived, failed: {text[-8000:]}"
