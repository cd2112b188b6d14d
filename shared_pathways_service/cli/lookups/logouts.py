"""Whether this system ends its users' processes when they log out."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Final

from shared_pathways_service.patience import timeouts

__all__ = ["logout_note"]

#: There where systemd-logind runs, and where it notes who lingers.
_LOGIND: Final = Path("/run/systemd/seats")
_LINGERING: Final = Path("/var/lib/systemd/linger")
_QUESTION: Final = (
    "busctl",
    "get-property",
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
    "KillUserProcesses",
)


def logout_note() -> str:
    """Returns what users must know who start something that shall outlive their shell."""
    user = os.getuid()
    if user == 0 or not _LOGIND.exists():  # (root is exempt)
        return ""
    try:
        if (_LINGERING / pwd.getpwuid(user).pw_name).exists():
            return ""
        answer = subprocess.run(
            _QUESTION, capture_output=True, text=True, check=False, timeout=timeouts.LOGIND.s
        )
    except (KeyError, OSError, subprocess.TimeoutExpired):
        return ""
    if answer.stdout.split() != ["b", "true"]:
        return ""
    return (
        "this system ends your processes when you log out (KillUserProcesses=yes in logind.conf): "
        "`loginctl enable-linger` keeps them"
    )
