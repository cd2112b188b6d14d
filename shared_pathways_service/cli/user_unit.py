"""Writes the unit with which a user's systemd runs the embedded service, for `sps serve`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import platformdirs

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["UNIT", "unit_path", "unit_text", "write_unit"]

UNIT: Final = "shared-pathways-service.service"
#: Variables of this shell alone: the token of a proxy, and marks of other programs' runs.
_NOT_KEPT: Final = ("SPS_TOKEN_FILE", "SPS_JOB_", "SPS_TEST_")
_UNIT: Final = """\
# Written by `sps serve --install`, which replaces it.
[Unit]
Description=Shared Pathways Service

[Service]
ExecStart={command}
{environment}Restart=on-failure
# It ends with these on SIGINT and SIGTERM: `systemctl stop` is no failure.
SuccessExitStatus=130 143
# The service ends its processes itself; what is left after that is killed.
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""


def unit_path() -> Path:
    """Returns the file of the unit."""
    return Path(platformdirs.user_config_dir()) / "systemd" / "user" / UNIT


def unit_text(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns the unit.

    Args:
      words: The command line of `sps`, e.g. ``serve``, ``--slices``, ``tpuv6e:2x2=2``.
      environ: Its ``SPS_…`` variables are those of the service.
    """
    command = [sys.executable, "-m", "shared_pathways_service.cli", *words]
    kept = {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith("SPS_") and not name.startswith(_NOT_KEPT)
    }
    lines = [f"Environment={_quoted(f'{name}={value}', '%')}\n" for name, value in kept.items()]
    # (In a command, systemd also expands variables.)
    return _UNIT.format(
        command=" ".join(_quoted(word, "%$") for word in command), environment="".join(lines)
    )


def write_unit(words: Sequence[str]) -> Path:
    """Writes the unit of this command line; returns its file.

    Raises:
      InvalidRequestError: This system has no systemd, or the file cannot be written.
    """
    if not sys.platform.startswith("linux"):
        raise InvalidRequestError("--install", True, "a system with systemd")
    path = unit_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit_text(words, os.environ), encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(
            "--install", str(path), f"a file that can be written ({error.strerror})"
        ) from error
    return path


def _quoted(word: str, doubled: str) -> str:
    """Returns a word as systemd reads it: in quotes, with specifiers and variables escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    for character in doubled:
        escaped = escaped.replace(character, character * 2)
    return f'"{escaped}"'
