"""Caches compiled programs on disk, for later sessions and other proxies of the same user.

The cache holds code that is run, so only this user may have written it: a directory or an entry
that others could have written is not used. An entry is one file, named by its key and identified by
its header; an entry that does not match its header is a miss, and is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from shared_pathways_service.runtime.file_failures import named
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.settings import private_directory

__all__ = ["CacheCounts", "CompileCache"]

#: Changes with the content of entries, or of their keys.
_FORMAT = b"sps-xla1"
#: Format, key, digest of the program, length of the program.
_HEADER = struct.Struct(">8s32s32sQ")
_SUFFIX = ".xla"
_DRAFT = "draft-"
_LOADING = "loading-"
#: Drafts of this age in seconds are abandoned.
_STALE_AGE_S = 3600.0
#: Fractions of the limit: bytes written before the directory is checked again, the fill level after
#: evictions, and the largest entry.
_WRITTEN_BLIND = 16
_LEFT_FULL = 8
_LARGEST = 4
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class CacheCounts:
    """Counts of a cache; written by the compiling thread only.

    Attributes:
      misses: Programs that were not there, or had an invalid entry.
      rejected: Invalid entries, and entries that XLA refused.
      evicted: Entries removed because the cache was full.
    """

    hits: int = 0
    misses: int = 0
    rejected: int = 0
    stored: int = 0
    evicted: int = 0


class CompileCache:
    """Serialised programs in a directory that several proxies share. Use by one thread at a time.

    Args:
      directory: Created if missing; refused if others can access it.
      limit_bytes: The limit of all entries; the least recently used are evicted. Each proxy that
        writes at the same time may exceed it by a sixteenth for a moment.
      identity: What programs depend on besides the arguments of `key`: the machine.
    """

    def __init__(self, directory: Path, limit_bytes: int, identity: bytes) -> None:
        self._directory = private_directory(directory, "--compile_cache_dir")
        self._limit = limit_bytes
        self._identity = identity
        self._room = 0
        self._has_warned = False
        self.counts = CacheCounts()
        self._loading, self._loading_path = self._create_record()
        with contextlib.suppress(OSError):
            self._remove_suspects()

    def close(self) -> None:
        """Removes the record of what this process loads."""
        self._loading_path.unlink(missing_ok=True)
        os.close(self._loading)

    def key(self, *parts: bytes) -> str:
        """Returns the name of the program with these parts, on this machine."""
        digest = hashlib.sha256()
        for part in (_FORMAT, self._identity, *parts):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()

    def load(self, key: str, read: Callable[[bytes], T]) -> T | None:
        """Returns a program, deserialised by `read`; None if it is missing.

        If `read` raises an error, the entry is removed.
        """
        path = self._path(key)
        try:
            data = _read(path, bytes.fromhex(key))
        except FileNotFoundError:
            data = None
        except (OSError, ValueError) as error:
            self._reject(path, str(error))
            data = None
        if data is None:
            self.counts.misses += 1
            return None
        try:
            # XLA may crash the process: then the next process must not try the same again.
            self._record_loading(key)
        except OSError as error:
            self._warn_once(f"loaded from {self._directory}", error)
            self.counts.misses += 1
            return None
        try:
            program = read(data)
        except Exception as error:  # noqa: BLE001 - whatever XLA says, the program is compiled
            self._reject(path, f"XLA cannot load it: {error}")
            self.counts.misses += 1
            return None
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(self._loading, 0)
        self.counts.hits += 1
        with contextlib.suppress(OSError):
            os.utime(path)
        return program

    def store(self, key: str, data: bytes) -> None:
        """Stores a program if possible; the reason why not is logged once."""
        size = _HEADER.size + len(data)
        if size > self._limit // _LARGEST:
            return
        header = _HEADER.pack(_FORMAT, bytes.fromhex(key), hashlib.sha256(data).digest(), len(data))
        draft = self._directory / f"{_DRAFT}{secrets.token_hex(8)}"
        try:
            # A user who deletes the caches need not end the proxies first.
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._make_room(size)
            # Readers see nothing or the whole entry; of two writers the later one wins.
            with os.fdopen(os.open(draft, _NEW, 0o600), "wb") as file:
                file.write(header)
                file.write(data)
            draft.replace(self._path(key))
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            self._warn_once(f"stored in {self._directory}", error)
            return
        self._room -= size
        self.counts.stored += 1

    def _warn_once(self, what: str, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            glog("W", f"Compiled programs are not {what}: {error}")

    # ---- the directory

    def _path(self, key: str) -> Path:
        return self._directory / (key + _SUFFIX)

    def _reject(self, path: Path, reason: str) -> None:
        self.counts.rejected += 1
        glog("W", f"Removed the compiled program {path.name}: {reason}")
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        if size <= self._room:
            return
        entries = sorted(self._entries(), key=lambda entry: entry[1])
        held = sum(nbytes for _, _, nbytes in entries)
        if held + size > self._limit:
            wanted = self._limit - self._limit // _LEFT_FULL - size
            for path, _, nbytes in entries:
                if held <= wanted:
                    break
                Path(path).unlink(missing_ok=True)
                held -= nbytes
                self.counts.evicted += 1
        self._room = min(self._limit - held, max(self._limit // _WRITTEN_BLIND, size))

    def _entries(self) -> Iterator[tuple[str, float, int]]:
        """Yields path, time of the last use, and size of entries; removes abandoned drafts."""
        stale = time.time() - _STALE_AGE_S
        with os.scandir(self._directory) as found:
            for item in found:
                with contextlib.suppress(FileNotFoundError):
                    status = item.stat(follow_symlinks=False)
                    if item.name.startswith(_DRAFT) and status.st_mtime < stale:
                        Path(item.path).unlink(missing_ok=True)
                    elif item.name.endswith(_SUFFIX):
                        yield item.path, status.st_mtime, status.st_size

    # ---- programs that crashed the process which loaded them

    def _create_record(self) -> tuple[int, Path]:
        """Creates the file that lists what this process loads; locked while it lives."""
        name = secrets.token_hex(8)
        draft = self._directory / f"{_DRAFT}{name}"
        fd = os.open(draft, _NEW, 0o600)
        try:
            # (A home on a network may have no locks.)
            with named(self._directory):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Under its name only now, so that it is never found unlocked.
            return fd, draft.rename(self._directory / f"{_LOADING}{name}")
        except OSError:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise

    def _record_loading(self, key: str) -> None:
        if not self._loading_path.exists():
            # The directory was emptied: the records of this process would not be found.
            fd, path = self._create_record()
            os.close(self._loading)
            self._loading, self._loading_path = fd, path
        os.pwrite(self._loading, key.encode(), 0)

    def _remove_suspects(self) -> None:
        """Removes what processes were loading when they died."""
        for path in self._directory.glob(f"{_LOADING}*"):
            if path == self._loading_path:
                continue
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                key = file.read(2 * hashlib.sha256().digest_size).decode("ascii", "replace")
                path.unlink(missing_ok=True)
                if key.isalnum():
                    self._reject(self._path(key), "a proxy died while loading it")


def _read(path: Path, key: bytes) -> bytes:
    """Returns an entry's program; raises a ValueError if it is not to be used."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a plain file")
        if status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
            raise ValueError("others could have written it")
        header = file.read(_HEADER.size)
        if len(header) != _HEADER.size:
            raise ValueError("it is truncated")
        found_format, found_key, digest, length = _HEADER.unpack(header)
        if found_format != _FORMAT or found_key != key:
            raise ValueError("it is of another program")
        if status.st_size != _HEADER.size + length:
            raise ValueError("it is truncated, or too long")
        data = file.read()
    if hashlib.sha256(data).digest() != digest:
        raise ValueError("it is corrupt")
    return data
