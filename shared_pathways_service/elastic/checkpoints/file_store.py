"""Accesses files in a directory that is local or in an object store, by relative paths."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import os
import posixpath
import ssl
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec

from shared_pathways_service.elastic.checkpoints.manifest import FileRecord
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["Store", "copy_tree"]

#: In the text of errors of requests, which fetches gcsfs's tokens.
_REFUSED: Final = "CERTIFICATE_VERIFY_FAILED"
#: The libraries that read and write checkpoints choose their authorities by themselves.
_UNTRUSTED: Final = (
    "if your network decrypts connections, name its authority: SSL_CERT_FILE for the files and "
    "REQUESTS_CA_BUNDLE for tokens, both before Python starts"
)

_Made = TypeVar("_Made")

#: Bytes per read.
_CHUNK: Final = 4 << 20
#: Files to read or copy concurrently.
_AT_ONCE: Final = 8


class _Explained:
    """A file system whose errors have a note if a server's authority is unknown."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._fs, name)
        if not callable(called):
            return called

        @functools.wraps(called)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return called(*args, **options)
            except Exception as error:
                if isinstance(error, ssl.SSLCertVerificationError) or _REFUSED in str(error):
                    error.add_note(_UNTRUSTED)
                raise

        return call


class Store:
    """A directory: a path, ``gs://…``, ``s3://…`` or another URL of fsspec. It need not exist.

    Attributes:
      url: Its URL or path, without a slash at its end.
      is_local: Whether it is in a file system: renaming is atomic, and files may be truncated.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        named = os.fspath(directory).removeprefix("file://")
        self.is_local = "://" not in named
        self.url = str(Path(named).absolute()) if self.is_local else named.rstrip("/")
        try:
            # Others write there too: do not cache listings.
            found, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
            self._fs = found if self.is_local else _Explained(found)
        except (ImportError, ValueError) as error:
            raise InvalidRequestError(
                "directory",
                named,
                "a path, gs://BUCKET/… or s3://BUCKET/…",
                hint=f"{error}; the extra `elastic` has the packages for gs:// and s3://",
            ) from error

    def make(self) -> None:
        """Creates the directory, if the store has directories."""
        if self.is_local:
            Path(self.url).mkdir(parents=True, exist_ok=True)

    def path(self, within: str) -> str:
        """Returns the full path of a relative one."""
        return f"{self.url}/{within}"

    def directories(self, within: str = "") -> list[str]:
        """Returns the names of its subdirectories."""
        try:
            found = self._fs.ls(self._inner(within), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = [
            posixpath.basename(one["name"].rstrip("/"))
            for one in found
            if one["type"] == "directory"
        ]
        return sorted(name for name in names if name)

    def files(self, within: str = "", *, checksums: bool = False) -> Mapping[str, FileRecord]:
        """Returns the files below a path, by path relative to it; reads them only for checksums."""
        top = self._inner(within)
        sizes = self._sizes(top)
        # Some stores list a directory as an empty object.
        found = {path[len(top) :].strip("/"): path for path in sizes if not path.endswith("/")}
        if not checksums:
            return {name: FileRecord(size=sizes[path]) for name, path in found.items()}
        records = _at_once(self._read_through, found.values())
        return {name: one for name, one in zip(found, records, strict=True) if one is not None}

    def exists(self, within: str) -> bool:
        """Returns whether a file or directory exists."""
        return bool(self._fs.exists(self._inner(within)))

    def read_text(self, within: str) -> str:
        """Reads a file; raises FileNotFoundError or UnicodeDecodeError."""
        content: bytes = self._fs.cat_file(self._inner(within))
        return content.decode()

    def read_json(self, within: str) -> Mapping[str, Any]:
        """Reads a JSON object; returns an empty mapping if it is missing or invalid."""
        try:
            content = json.loads(self.read_text(within))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write_text(self, within: str, text: str) -> None:
        """Writes a file into an existing directory."""
        self._fs.pipe_file(self._inner(within), text.encode())

    def remove(self, within: str) -> None:
        """Removes a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._inner(within))

    def remove_tree(self, within: str) -> None:
        """Removes a directory if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._inner(within), recursive=True)

    def move_tree(self, within: str, target: str) -> None:
        """Renames a directory to an unused name; atomic if it is local."""
        if self.is_local:
            Path(self.path(target)).parent.mkdir(parents=True, exist_ok=True)
            Path(self.path(within)).rename(self.path(target))
            return
        # One by one: recursive moves to missing targets differ by store.
        source, top = self._inner(within), self._inner(target)
        paths = list(self._sizes(source))
        _at_once(lambda path: self._fs.cp_file(path, top + path[len(source) :]), paths)
        self._fs.rm(paths)

    def copy_file(self, within: str, target: Store) -> None:
        """Copies a file to another store; one of the two is local."""
        if self.is_local:
            target._fs.put_file(self.path(within), target._inner(within))
            return
        path = Path(target.path(within))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get_file(self._inner(within), str(path))

    def _inner(self, within: str) -> str:
        return f"{self._root}/{within}" if within else str(self._root)

    def _sizes(self, top: str) -> Mapping[str, int]:
        try:
            found = self._fs.find(top, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {path: one["size"] for path, one in found.items()}

    def _read_through(self, path: str) -> FileRecord | None:
        size = crc = 0
        try:
            with self._fs.open(path, "rb") as file:
                while chunk := file.read(_CHUNK):
                    size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        except FileNotFoundError:
            return None  # deleted meanwhile
        return FileRecord(size=size, crc32=crc)


def copy_tree(
    source: Store,
    target: Store,
    within: str,
    *,
    last: str | None = None,
    before_last: Callable[[], None] = lambda: None,
) -> None:
    """Copies a directory from one store to another; one of them is local.

    `last` names the file to copy after all others, and after the call of `before_last`, whose
    errors are raised.
    """
    names = [f"{within}/{name}" for name in source.files(within) if name != last]
    _at_once(lambda name: source.copy_file(name, target), names)
    if last is not None:
        before_last()
        source.copy_file(f"{within}/{last}", target)


def _at_once(function: Callable[[str], _Made], paths: Iterable[str]) -> list[_Made]:
    with concurrent.futures.ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(function, paths))
