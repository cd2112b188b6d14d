"""Whether a service ends when its user logs out, and what keeps it.

systemd puts processes in groups. Those of a login are in the scope of its session, which logind
kills at the logout only if the system's administrator wants that (logind.conf: KillUserProcesses,
KillOnlyUsers and KillExcludeUsers); lingering does not change it. Units of a user, and mostly the
terminals of a desktop, are below the user's own systemd. It ends soon after the last session, with
all that is below it, unless the user lingers; KillUserProcesses does not matter there.
"""

from __future__ import annotations

import pwd
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import read_state

__all__ = ["logout_note", "logout_note_of_service"]

#: There where systemd-logind runs, and where it notes who lingers.
_LOGIND: Final = Path("/run/systemd/seats")
_LINGERING: Final = Path("/var/lib/systemd/linger")
_PROPERTIES: Final = ("KillUserProcesses", "KillExcludeUsers", "KillOnlyUsers")
_QUESTION: Final = (
    "busctl",
    "get-property",
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
    *_PROPERTIES,
)
_OF_SESSION: Final = re.compile(r"/user-(\d+)\.slice/session-[^/]+\.scope(/|$)", re.MULTILINE)
_OF_SYSTEMD: Final = re.compile(r"/user@(\d+)\.service(/|$)", re.MULTILINE)


def logout_note_of_service(runtime_dir: Path) -> str:
    """As `logout_note`, for the embedded service with this runtime directory."""
    state = read_state(RuntimePaths(runtime_dir))
    return "" if state is None else logout_note(state.supervisor.pid)


def logout_note(pid: int) -> str:
    """Returns what users must know of the service in this process who log out; empty: nothing."""
    if not _LOGIND.exists():
        return ""
    group = _group_of(pid)
    try:
        if found := _OF_SESSION.search(group):
            user = pwd.getpwuid(int(found[1])).pw_name
            return _note_of_session(lingers=_lingers(user)) if _kills(user) else ""
        if found := _OF_SYSTEMD.search(group):
            user = pwd.getpwuid(int(found[1])).pw_name
            return "" if _lingers(user) else _NOTE_OF_SYSTEMD
    except (KeyError, OSError, subprocess.TimeoutExpired):
        return ""
    return ""


_NOTE_OF_SYSTEMD: Final = (
    "the service is below your own systemd, which ends with your last session: "
    "`loginctl enable-linger` keeps both"
)


def _note_of_session(*, lingers: bool) -> str:
    return (
        "this system ends the service when you log out (KillUserProcesses in logind.conf; "
        "lingering alone does not change that): start it outside of your session, as a unit "
        "(`sps serve --install`) or with `systemd-run --user --scope sps serve`"
    ) + ("" if lingers else ", after `loginctl enable-linger`")


def _group_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _lingers(user: str) -> bool:
    return (_LINGERING / user).exists()


def _kills(user: str) -> bool:
    """Whether logind kills what is left in a session of this user."""
    answer = subprocess.run(
        _QUESTION, capture_output=True, text=True, check=False, timeout=timeouts.LOGIND.s
    )
    lines = [shlex.split(line) for line in answer.stdout.splitlines()]
    if len(lines) != len(_PROPERTIES):
        return False
    kills, excluded, only = lines
    # (A list begins with its type and its length.)
    if user in excluded[2:]:
        return False
    return user in only[2:] if only[2:] else kills == ["b", "true"]
