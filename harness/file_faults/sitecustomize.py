"""Makes file operations fail as the variable says; Python imports this before all else."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_ADDING = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.truncate", "os.utime", "os.chmod")
_REMOVING = ("os.remove", "os.rmdir")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def _install(setting: str) -> None:
    role, directory, first, number, lasts, told = setting.split(":")
    if role not in " ".join(sys.orig_argv):
        return
    fails_from, code = int(first), int(number)
    below = directory.rstrip("/")
    log = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "open":
            if not isinstance(arguments[0], (str, bytes)) or not arguments[2] & _WRITING:
                return
        elif event not in _ADDING and (event not in _REMOVING or code in _NO_ROOM):
            return
        path = os.fspath(arguments[0])
        path = os.fsdecode(path) if isinstance(path, bytes) else str(path)
        if path != below and not path.startswith(f"{below}/"):
            return
        # (A directory that exists needs no room.)
        if event == "os.mkdir" and os.path.isdir(path):  # noqa: PTH112 - small, in every process
            return
        seen += 1
        if seen == fails_from or (seen > fails_from and lasts == "1"):
            os.write(log, f"{event} {path}\n".encode())
            raise OSError(code, os.strerror(code), path)

    sys.addaudithook(hook)


if "SPS_TEST_FILE_FAULT" in os.environ:
    _install(os.environ["SPS_TEST_FILE_FAULT"])
