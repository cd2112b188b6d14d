"""Logs of agents: old ones go, but for those that somebody still writes."""

from __future__ import annotations

import os
from pathlib import Path

from harness.deadlines import deadline
from shared_pathways_service.agent.launch import launch_agent
from tests.agent.fake_agent import COMMAND


def test_old_logs_go_but_for_those_of_living_agents(own_directories: Path) -> None:
    directory = own_directories / "agents"
    living = directory / "living.log"
    process, sock = launch_agent(living, COMMAND)
    with sock:
        for number in range(30):
            other = directory / f"old-{number}.log"
            other.touch()
            os.utime(other, (number, number))
        os.utime(living, (0, 0))
        second, sock2 = launch_agent(directory / "new.log", COMMAND)
        sock2.close()
        second.wait(deadline(60.0))
        left = {path.name for path in directory.glob("*.log")}
        assert "living.log" in left
        assert "old-0.log" not in left
        assert "old-29.log" in left
    process.wait(deadline(60.0))
