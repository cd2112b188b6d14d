"""Command lines of the executor's stand-in, and what it was started with."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from shared_pathways_service.servers.worker.executor_process import (
    Assignment,
    Command,
    Launch,
    executor_command,
)

STAND_IN = Path(__file__).with_name("executor_stand_in.py")


class StandIn:
    """Executors that are stand-ins; `mode` is that of the next one."""

    def __init__(
        self, directory: Path, host_index: int = 0, mode: str = "", platform: str = "cpu"
    ) -> None:
        self.mode = mode
        self._facts = directory / f"executors-{host_index}"
        self._real: Command = executor_command(host_index, "127.0.0.1", platform)

    def command(self, assignment: Assignment, token_fd: int, ready_fd: int) -> Launch:
        """Is a `Command`: the real one's flags, for another program."""
        launch = self._real(assignment, token_fd, ready_fd)
        python, _, module, name, *flags = launch.arguments
        assert (python, module) == (sys.executable, "-m")
        assert name == "shared_pathways_service.servers.executor"
        program = [python, "-P", str(STAND_IN), str(self._facts), self.mode or "serve"]
        return dataclasses.replace(launch, arguments=[*program, *flags])

    @property
    def started(self) -> list[dict[str, Any]]:
        """What each was started with, in their order."""
        if not self._facts.exists():
            return []
        return [json.loads(line) for line in self._facts.read_text().splitlines()]
