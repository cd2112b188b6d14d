"""The command line as a whole: help, version, completion, wrong usage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from shared_pathways_service.cli import COMMANDS
from shared_pathways_service.version import __version__


def sps(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shared_pathways_service.cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=deadline(60.0),
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_help_names_every_command() -> None:
    done = sps("--help")
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.split("Commands:")[1].splitlines() if line}
    assert listed >= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = sps(command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"sps {command}" in done.stdout


def test_version() -> None:
    assert sps("--version").stdout == f"sps {__version__}\n"


def test_shells_complete_commands_and_their_options() -> None:
    asked = {"_SPS_COMPLETE": "complete_bash"}
    assert sps(COMP_WORDS="sps se", COMP_CWORD="1", **asked).stdout.split() == ["serve"]
    found = sps(COMP_WORDS="sps serve --sp", COMP_CWORD="2", **asked)
    assert found.stdout.split() == ["--spares"]


@pytest.mark.parametrize("wrong", [("nosuch",), ("status", "--nosuch"), ("serve", "--spares=x")])
def test_wrong_usage_ends_with_2(wrong: tuple[str, ...]) -> None:
    done = sps(*wrong)
    assert done.returncode == 2
    assert wrong[-1].split("=")[0] in done.stderr


@pytest.mark.real_starts
@pytest.mark.parametrize(
    "command",
    ["list", "status", "logs", "delete", "reap", "doctor", "render", "deploy", "hotswap"],
)
def test_who_names_no_cluster_does_not_import_what_reaches_one(command: str) -> None:
    source = f"import sys, {COMMANDS[command].module}; print('aiohttp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "False\n"
