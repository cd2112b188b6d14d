"""Makes file operations fail as the variable says; Python imports this before all else.

An audit hook sees what is opened, made, renamed and removed. Writes, syncs and closes have no audit
events: the functions of `os`, and the files that `open` returns, are replaced by ones that count.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_ADDING = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.utime", "os.chmod")
#: They need no room.
_FREEING = ("os.remove", "os.rmdir", "os.truncate")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class _Faults:
    """The operations of this process, and which of them fail."""

    def __init__(self, setting: str) -> None:
        self.role, directory, first, number, lasts, told, switch = setting.split(":")
        self._below = directory.rstrip("/")
        self._first, self._number, self._lasts = int(first), int(number), lasts == "1"
        self._told, self._switch = told, switch
        self._seen = 0
        self._log = -1
        #: Descriptors with data that may not be on the disk: closing them may fail.
        self._written: set[int] = set()

    def has(self, path: str) -> bool:
        """Whether a path is one of those where operations fail."""
        return path == self._below or path.startswith(f"{self._below}/")

    def path_of(self, descriptor: int) -> str:
        """Returns the file of a descriptor, if operations on it may fail; else an empty text."""
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - in each operation
        except OSError:
            return ""
        return path if self.has(path) else ""

    def now(self, what: str, path: str) -> OSError | None:
        """Counts an operation; returns the error with which it fails, None: it does not."""
        if what in _FREEING and self._number in _NO_ROOM:
            return None
        if self._switch and not os.access(self._switch, os.F_OK):
            return None
        self._seen += 1
        if self._seen != self._first and not (self._lasts and self._seen > self._first):
            return None
        if self._log < 0:
            self._log = os.open(self._told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _os_write(self._log, f"{what} {path}\n".encode())
        return OSError(self._number, os.strerror(self._number), path)

    def write(self, what: str, descriptor: int, data: Any, write: Callable[[Any], object]) -> None:
        """Counts a write; one that fails is done in part, as on a disk that becomes full."""
        if path := self.path_of(descriptor):
            self._written.add(descriptor)
            if error := self.now(what, path):
                if self._seen == self._first:
                    whole = memoryview(data).cast("B")
                    write(whole[: len(whole) // 2])
                raise _without_name(error)

    def sync(self, descriptor: int) -> None:
        """Counts a sync."""
        if path := self.path_of(descriptor):
            self._written.discard(descriptor)
            if error := self.now("sync", path):
                raise _without_name(error)

    def written_path(self, descriptor: int) -> str:
        """Returns the file of a descriptor that will be closed, if it was written."""
        path = self.path_of(descriptor) if descriptor in self._written else ""
        self._written.discard(descriptor)
        return path

    def close(self, path: str) -> None:
        """Counts a close, which was done."""
        if path and (error := self.now("close", path)):
            raise _without_name(error)

    def has_file(self, file: Any) -> bool:
        """Whether operations on a file may fail, which is given as to `open`."""
        if isinstance(file, int):
            return bool(self.path_of(file))
        return self.has(os.path.abspath(os.fsdecode(file)))  # noqa: PTH100 - as above

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Has an operation with an audit event fail."""
        if event == "open":
            if not isinstance(arguments[0], (str, bytes)) or not arguments[2] & _WRITING:
                return
        elif event not in _ADDING and event not in _FREEING:
            return
        if isinstance(arguments[0], int):
            path = self.path_of(arguments[0])
        else:
            path = os.fsdecode(arguments[0])
        if not self.has(path):
            return
        # (A directory that exists needs no room.)
        if event == "os.mkdir" and os.path.isdir(path):  # noqa: PTH112 - small, in every process
            return
        if error := self.now(event, path):
            raise error


def _without_name(error: OSError) -> OSError:
    """Returns an error as the system has it for a descriptor."""
    error.filename = None
    return error


_os_write, _os_close = os.write, os.close


def _replace_functions(faults: _Faults) -> None:
    def writing(name: str, real: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, data: Any, *others: Any) -> int:
            faults.write(name, descriptor, data, lambda part: real(descriptor, part, *others))
            return real(descriptor, data, *others)

        return write

    def syncing(real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(fd: Any) -> None:
            faults.sync(fd if isinstance(fd, int) else fd.fileno())
            real(fd)

        return sync

    def close(fd: int) -> None:
        path = faults.written_path(fd)
        _os_close(fd)
        faults.close(path)

    os.write, os.pwrite = writing("os.write", os.write), writing("os.pwrite", os.pwrite)
    os.fsync, os.fdatasync = syncing(os.fsync), syncing(os.fdatasync)  # type: ignore[assignment]
    os.close = close


def _replace_files(faults: _Faults) -> None:
    real = io.open

    class File(io.FileIO):
        """A file whose writes, and close, may fail."""

        def write(self, data: Any) -> int:
            faults.write("write", self.fileno(), data, super().write)
            return super().write(data)

        def close(self) -> None:
            path = "" if self.closed else faults.written_path(self.fileno())
            super().close()
            faults.close(path)

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if set(mode) & set("wax+") and faults.has_file(file):
            raw = File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            return _wrapped(raw, mode, buffering, encoding, errors, newline)
        return real(file, mode, buffering, encoding, errors, newline, closefd, opener)

    io.open = builtins.open = opened
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and faults.path_of(stream.fileno()):
            ours = opened(stream.fileno(), "w", 1, "utf-8", stream.errors, None, closefd=False)
            setattr(sys, name, ours)
            setattr(sys, f"__{name}__", ours)


def _wrapped(
    raw: io.FileIO,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    """Wraps a file as `open` does."""
    if buffering == 0:
        return raw
    binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    if "b" in mode:
        return binary
    text = io.TextIOWrapper(binary, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text


def _install(setting: str) -> None:
    faults = _Faults(setting)
    if faults.role in " ".join(sys.orig_argv):
        sys.addaudithook(faults.hook)
        _replace_functions(faults)
        _replace_files(faults)


if "SPS_TEST_FILE_FAULT" in os.environ:
    _install(os.environ["SPS_TEST_FILE_FAULT"])
