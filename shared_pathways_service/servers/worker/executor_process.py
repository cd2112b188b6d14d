"""One executor: the process that owns this host's devices for one tenant and one generation.

It leads a session and process group of its own, and ends with this process (``--parent_pid``). Its
token is passed to it through a pipe, so that there is no file that could be left behind. What it
writes becomes lines of this process's log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.constants import CPU
from shared_pathways_service.runtime.embedded.server_environment import server_environment
from shared_pathways_service.runtime.executor_lines import ExecutorTag
from shared_pathways_service.runtime.processes import identity_of_child
from shared_pathways_service.servers.serving.process import ProcessWatch
from shared_pathways_service.servers.worker.executor_output import ExecutorOutput
from shared_pathways_service.servers.worker.executor_usage import UsageMeter
from shared_pathways_service.servers.worker.orphans import kill_orphans

__all__ = ["Assignment", "Command", "ExecutorProcess", "Launch", "executor_command"]

_READY_LIMIT = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment:
    """The placement that this host computes for.

    Attributes:
      generation: That of the placement; from 1.
      memory_limit_bytes: Bytes that its executor may use; 0: unlimited.
    """

    tenant: str
    generation: int
    instance_type: InstanceType
    memory_limit_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """The command line of a process, and its environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


#: Returns an executor's launch, from its assignment and the numbers of the file descriptors with
#: its token and for its report of readiness.
Command: TypeAlias = Callable[[Assignment, int, int], Launch]


def executor_command(
    host_index: int,
    bind_address: str,
    platform: str = CPU,
    first_device: int = 0,
    *,
    colocated_python: bool = False,
) -> Command:
    """Returns the function that builds the command lines of a host's executors."""

    def command(assignment: Assignment, token_fd: int, ready_fd: int) -> Launch:
        kind = assignment.instance_type
        arguments = [
            *(sys.executable, "-P", "-m", "shared_pathways_service.servers.executor"),
            f"--instance_type={kind}",
            f"--host_index={host_index}",
            f"--devices={kind.chips_per_host}",
            f"--token_file=/dev/fd/{token_fd}",
            f"--platform={platform}",
            f"--first_device={first_device}",
            f"--bind_address={bind_address}",
            "--server_port=0",
            f"--ready_fd={ready_fd}",
            f"--parent_pid={os.getpid()}",
            f"--memory_limit={assignment.memory_limit_bytes}",
            *(["--colocated_python=true"] if colocated_python else ()),
        ]
        return Launch(arguments=arguments, environment=server_environment(os.environ, platform))

    return command


class ExecutorProcess:
    """A started executor; use it on the thread that started it, which must outlive it.

    Attributes:
      meter: Measures what it uses, on any thread.
      output: What it writes, to be passed on.
      token: What its clients must present.
      port: Its port, once it has reported that; 0 before.
      ready_pipe: Readable when it may have reported, or ended; None after its report.
    """

    def __init__(
        self,
        assignment: Assignment,
        command: Command,
        *,
        tag: ExecutorTag,
        on_end: Callable[[], None],
    ) -> None:
        """Starts it; calls `on_end` once on another thread when it has ended.

        Its lines get the tag.

        Raises:
          OSError: It cannot be started.
        """
        self.assignment = assignment
        self.token = secrets.token_urlsafe(32)
        self.port = 0
        self.ready_pipe: int | None = None
        self._said = b""
        with contextlib.ExitStack() as stack:
            ours, ready = os.pipe()
            stack.callback(os.close, ready)
            undo = stack.enter_context(contextlib.ExitStack())
            undo.callback(os.close, ours)
            self.output = ExecutorOutput(tag)
            stack.callback(self.output.started)
            undo.callback(self.output.close)
            token, token_write = os.pipe()
            stack.callback(os.close, token)
            with os.fdopen(token_write, "wb") as file:
                file.write(self.token.encode())
            launch = command(assignment, token, ready)
            self._process = subprocess.Popen(
                launch.arguments,
                stdin=subprocess.DEVNULL,
                stdout=self.output.write_end,
                stderr=self.output.write_end,
                pass_fds=(token, ready),
                env=launch.environment,
                cwd="/",
                start_new_session=True,
                umask=0o077,
            )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self._identity = identity_of_child(self._process.pid)
            self._watch = ProcessWatch(self._identity, on_end)
            undo.pop_all()
        os.set_blocking(ours, False)
        self.ready_pipe = ours
        self.meter = UsageMeter(self._identity)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def serves(self) -> bool:
        """Whether it has reported its port."""
        return self.port > 0

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; `kill` is still to be called."""
        if sys.platform != "linux":
            return not self._identity.is_alive()
        # (A worker without a free file descriptor cannot read /proc.)
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, look) is not None

    def read_report(self) -> None:
        """Reads its report of readiness, as far as it has come."""
        if self.ready_pipe is None:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.ready_pipe, _READY_LIMIT)
            self._said += data
            if not data or b"\n" in self._said or len(self._said) > _READY_LIMIT:
                self._close_pipe()
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    self.port = int(json.loads(self._said)["port"])

    def kill(self, within_s: float) -> int:
        """Kills its process group and removes all that is left of it; returns its exit code.

        Processes of its tenant's functions are not in the group: if this process adopts orphans,
        they are killed as well.

        Raises:
          subprocess.TimeoutExpired: It, or an orphan, has not ended in time.
        """
        # While its leader is not reaped, no other group can have this number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._close_pipe()
        code = self._process.wait(within_s)
        kill_orphans(within_s)
        self.output.close()
        self._watch.close()
        return code

    def _close_pipe(self) -> None:
        if self.ready_pipe is not None:
            os.close(self.ready_pipe)
            self.ready_pipe = None
