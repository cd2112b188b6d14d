"""Packs the working directory of a submitted job, by git's rules of what is ignored."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.patience import timeouts

__all__ = ["BUCKET", "SECRET", "Room", "pack"]


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """How large a working directory can be.

    Attributes:
      archive: Bytes, packed.
      files: Bytes before they are packed: more is not even read.
      level: Of compression, from 1 (fast) to 9.
      shown: `archive`, as users read it.
      hint: What to do with a larger one.
    """

    archive: int
    files: int
    level: int
    shown: str
    hint: str


_IGNORE: Final = "list what the program does not need in .gitignore"
#: A Secret has at most 1 MiB.
SECRET: Final = Room(
    512 * 1024,
    64 * 1024 * 1024,
    9,
    "512 KiB",
    f"{_IGNORE}; send it through a bucket (--workdir-bucket), or put larger files into an image "
    "(--image)",
)
BUCKET: Final = Room(
    1 << 30,
    4 << 30,
    1,
    "1 GiB",
    f"{_IGNORE}; have the program read larger files from the bucket, or put them into an image "
    "(--image)",
)
_NAMED = 3
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def pack(directory: Path, to: BinaryIO, room: Room, stop: threading.Event | None = None) -> None:
    """Writes a directory as a compressed archive, without files that git ignores.

    Args:
      directory: The directory.
      to: An empty file.
      room: What it can have.
      stop: Ends the work once it is set, with an unfinished archive.

    Raises:
      InvalidRequestError: It is too large, a file cannot be read, or a link leads out of it.
    """
    try:
        _pack(directory, _Archive(to, room.archive, stop or threading.Event()), room)
    except _StoppedError:
        return
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise InvalidRequestError(
                "workdir", str(directory), f"room for its archive in {tempfile.gettempdir()}"
            ) from error
        at = str(error.filename or directory)
        raise InvalidRequestError("workdir", at, f"files that can be read ({error})") from error
    except subprocess.TimeoutExpired as error:
        raise InvalidRequestError(
            "workdir", str(directory), f"a directory that git lists within {timeouts.GIT.s:g} s"
        ) from error


class _FullError(Exception):
    """An archive has become too large."""


class _StoppedError(Exception):
    """The submission was interrupted."""


class _Archive(io.RawIOBase):
    """Writes a file up to a limit, and until it is stopped."""

    def __init__(self, to: BinaryIO, most: int, stop: threading.Event) -> None:
        self._to = to
        self._left = most
        self._stop = stop
        self._has_ended = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._has_ended:
            # What gzip still writes when it is closed.
            return len(data)
        self._left -= len(data)
        self._has_ended = self._stop.is_set() or self._left < 0
        if self._has_ended:
            raise _StoppedError if self._stop.is_set() else _FullError
        return self._to.write(data)


def _pack(directory: Path, to: _Archive, room: Room) -> None:
    paths = list(_files_of(directory))
    if sum(_size(path) for path in paths) > room.files:
        raise _too_large(directory, paths, room)
    try:
        with (
            gzip.GzipFile("", "wb", room.level, to, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for path in paths:
                _check_link(directory, path)
                archive.add(path, path.relative_to(directory), recursive=False)
    except _FullError:
        raise _too_large(directory, paths, room) from None


def _files_of(directory: Path) -> Iterator[Path]:
    """Yields the files and links of a directory that git does not ignore."""
    for name in sorted(_names_in(directory)):
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            yield from _files_of(path)  # a repository inside of this one
        elif path.is_symlink() or path.is_file():
            yield path


def _names_in(directory: Path) -> Sequence[str]:
    git = shutil.which("git")
    if git is None:
        raise InvalidRequestError(
            "workdir", str(directory), "git on PATH, by whose rules files are ignored"
        )
    at = (git, "-C", str(directory))
    listed = _answer(*at, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None or _answer(*at, "check-ignore", ".") is not None:
        # Not in a repository, or ignored by the one around it as a whole: with an empty repository,
        # git applies the directory's .gitignore.
        with tempfile.TemporaryDirectory() as empty:
            _answer(*at, "init", "--quiet", "--bare", empty)
            where = (f"--git-dir={empty}", f"--work-tree={directory}")
            listed = _answer(*at, *where, "ls-files", "-z", "--others", "--exclude-standard")
    if listed is None:
        raise InvalidRequestError("workdir", str(directory), "a directory that git can list")
    return sorted({name.rstrip("/") for name in listed.split("\0") if name})


def _answer(*words: str) -> str | None:
    """Returns the output of a command; None if it fails."""
    # (These variables, as hooks have them, would name another repository.)
    variables = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    done = subprocess.run(
        words, capture_output=True, check=False, env=variables, timeout=timeouts.GIT.s
    )
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None


def _check_link(directory: Path, path: Path) -> None:
    if not path.is_symlink():
        return
    target = path.readlink()
    is_inside = (path.parent / target).resolve().is_relative_to(directory.resolve())
    if target.is_absolute() or not is_inside:
        raise InvalidRequestError(
            "workdir", str(path), f"links within {directory}; this one leads to {target}"
        )


def _size(path: Path) -> int:
    return path.lstat().st_size


def _too_large(directory: Path, paths: Sequence[Path], room: Room) -> InvalidRequestError:
    largest = sorted(paths, key=_size, reverse=True)[:_NAMED]
    named = ", ".join(f"{path.relative_to(directory)} ({_size(path):,} bytes)" for path in largest)
    return InvalidRequestError(
        "workdir",
        str(directory),
        f"files of at most {room.shown}, compressed; the largest are {named}",
        hint=room.hint,
    )
