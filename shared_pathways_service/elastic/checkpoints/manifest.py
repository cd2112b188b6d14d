"""The manifest of a checkpoint's files: size and checksum of each, written before the commit.

Orbax's arrays have no checksums: a flipped bit would be read as another number, without an error.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["FileRecord", "Manifest", "ManifestError"]

_VERSION: Final = 1


class ManifestError(ValueError):
    """A manifest differs from what was written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRecord:
    """A file at the time of the commit; without a checksum, the file was not read."""

    size: int
    crc32: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a checkpoint other than arrays, and its files by relative path."""

    progress: Mapping[str, Any]
    files: Mapping[str, FileRecord]

    @property
    def nbytes(self) -> int:
        """The size of all files."""
        return sum(record.size for record in self.files.values())

    @property
    def has_checksums(self) -> bool:
        """Whether the files' contents can be checked."""
        return all(record.crc32 is not None for record in self.files.values())

    def difference(self, found: Mapping[str, FileRecord]) -> str | None:
        """Returns how files differ from the manifest; None: they do not.

        Additional files are ignored. Checksums are compared if both exist.
        """
        for path, record in self.files.items():
            now = found.get(path)
            if now is None:
                return f"{path} is missing"
            if now.size != record.size:
                return f"{path} has {now.size} bytes, and was written with {record.size}"
            if None not in (now.crc32, record.crc32) and now.crc32 != record.crc32:
                return f"the content of {path} is not what was written: its checksum differs"
        return None

    def to_text(self) -> str:
        """Returns the manifest as JSON with a checksum."""
        files = {path: [record.size, record.crc32] for path, record in sorted(self.files.items())}
        body = {"version": _VERSION, "progress": dict(self.progress), "files": files}
        return json.dumps({**body, "crc32": _checksum(body)}, indent=1, allow_nan=True)

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """Parses the result of `to_text`; raises ManifestError if it was changed, or is newer."""
        try:
            body = json.loads(text)
            stated = body.pop("crc32")
            whole = _checksum(body) == stated
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ManifestError(f"it cannot be read: {error}") from error
        if not whole:
            raise ManifestError("it is not what was written: its checksum differs")
        if body["version"] != _VERSION:
            raise ManifestError(
                f"it is of version {body['version']}; this program knows {_VERSION}"
            )
        files = {
            path: FileRecord(size=size, crc32=crc) for path, (size, crc) in body["files"].items()
        }
        return cls(progress=body["progress"], files=files)


def _checksum(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
