"""What a checkpoint's files must be: each one's size and checksum, written before it is committed.

Orbax's arrays have no checksum of their own: a flipped bit in one is read back as another number,
without an error.
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
    """A manifest is not as it was written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRecord:
    """A file as it was when the checkpoint was committed.

    Attributes:
      size: Bytes.
      crc32: Of its content; None: it was not read (an object store keeps checksums of its own).
    """

    size: int
    crc32: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint holds beside its arrays, and what its files must be.

    Attributes:
      progress: How far training was, as plain data.
      files: By path within the checkpoint, with slashes.
    """

    progress: Mapping[str, Any]
    files: Mapping[str, FileRecord]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.files.values())

    @property
    def has_checksums(self) -> bool:
        """Whether the files' contents can be checked, too."""
        return all(record.crc32 is not None for record in self.files.values())

    def difference(self, found: Mapping[str, FileRecord]) -> str | None:
        """Returns how files differ from what they were; None: they do not.

        Args:
          found: The files that there are; more than there were do not matter. Checksums are
            compared where both have one.
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
        """Returns it as JSON that can be checked."""
        body = self._body()
        return json.dumps({**body, "crc32": _checksum(body)}, indent=1, allow_nan=True)

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """Makes what `to_text` described.

        Raises:
          ManifestError: It is not as it was written, or of a newer version.
        """
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

    def _body(self) -> dict[str, Any]:
        files = {path: [record.size, record.crc32] for path, record in sorted(self.files.items())}
        return {"version": _VERSION, "progress": dict(self.progress), "files": files}


def _checksum(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
