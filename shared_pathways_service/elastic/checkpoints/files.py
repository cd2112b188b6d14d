"""Manages checkpoints as directories: lists them, checks them, moves damaged ones aside.

Works without Orbax, and reads no arrays. A directory DIR, local or in an object store, has

    DIR/STEP/                    a checkpoint, as Orbax writes it
        commit_success.txt       written last: without it, the checkpoint is incomplete
        state/                   the arrays
        progress/progress.json   progress of training; sizes and checksums of the files in state/
        deleting.txt             it is being deleted: the rest is not a checkpoint
    DIR/quarantine/STEP-N/       unusable checkpoints, with the reason in reason.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from shared_pathways_service.elastic.checkpoints.file_store import Store
from shared_pathways_service.elastic.checkpoints.manifest import FileRecord, Manifest, ManifestError
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.events import rfc3339

__all__ = [
    "COMMIT_FILE",
    "PROGRESS_ITEM",
    "STATE_ITEM",
    "CheckpointInfo",
    "Folder",
    "State",
    "Survey",
    "list_checkpoints",
    "write_manifest",
]

#: Orbax's name for it.
COMMIT_FILE: Final = "commit_success.txt"
STATE_ITEM: Final = "state"
PROGRESS_ITEM: Final = "progress"
_MANIFEST: Final = f"{PROGRESS_ITEM}/progress.json"
_DELETING: Final = "deleting.txt"
_REASON: Final = "reason.json"
_QUARANTINE: Final = "quarantine"
_ORBAX_METADATA: Final = "_CHECKPOINT_METADATA"
_STEP: Final = re.compile(r"0|[1-9]\d*")
_ASIDE: Final = re.compile(r"\d+-\d+")
#: Maximum number of unfinished checkpoints in quarantine; more would not be informative.
_UNCOMMITTED_KEPT: Final = 3

State = Literal["committed", "uncommitted", "damaged", "quarantined"]
#: By path relative to the checkpoint.
Files: TypeAlias = Mapping[str, FileRecord]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """Information about a checkpoint, without its arrays.

    Attributes:
      step: Steps completed when it was saved.
      state: ``committed``: it is complete, as far as it was checked. ``uncommitted``: it was not
        finished (or is being written now). ``damaged``: files are missing, or differ from what was
        written. ``quarantined``: it was moved aside.
      path: Its path.
      epoch: The epoch of training; None: unknown.
      loss: The loss of its last step; None: unknown.
      bytes: The size of its files.
      time: When it was committed or moved aside, RFC 3339; None: unknown.
      reason: Why it cannot be used; None: it can.
    """

    step: int
    state: State
    path: str
    epoch: int | None = None
    loss: float | None = None
    bytes: int | None = None
    time: str | None = None
    reason: str | None = None


def list_checkpoints(
    directory: str | os.PathLike[str], *, checksums: bool = False
) -> tuple[CheckpointInfo, ...]:
    """Returns the checkpoints of a directory by step, quarantined ones last; changes nothing.

    Args:
      directory: The directory, local or ``gs://…`` or ``s3://…``.
      checksums: Whether to read every file and compare its checksum; otherwise only sizes are
        compared.
    """
    folder = Folder(directory)
    found = folder.survey()
    return (
        *(folder.info(step, files, checksums=checksums) for step, files in found.steps.items()),
        *(folder.quarantined_info(name, files) for name, files in found.quarantined.items()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """The content of a directory, from one listing.

    Attributes:
      steps: Files of each checkpoint, usable or not, by step, in order.
      half_deleted: Steps of interrupted deletions.
      quarantined: Files of quarantined checkpoints by name, in order of steps.
    """

    steps: Mapping[int, Files]
    half_deleted: Sequence[int]
    quarantined: Mapping[str, Files]


class Folder:
    """A directory of checkpoints, local, ``gs://…`` or ``s3://…``; it need not exist."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.store = Store(directory)

    def survey(self) -> Survey:
        """Lists the whole content."""
        steps: dict[int, dict[str, FileRecord]] = {}
        aside: dict[str, dict[str, FileRecord]] = {}
        for name in self.store.directories():
            if _STEP.fullmatch(name):
                steps[int(name)] = {}
        for path, record in self.store.files().items():
            top, _, rest = path.partition("/")
            if _STEP.fullmatch(top):
                steps.setdefault(int(top), {})[rest] = record
            elif top == _QUARANTINE:
                name, _, rest = rest.partition("/")
                if _ASIDE.fullmatch(name):
                    aside.setdefault(name, {})[rest] = record
        half = sorted(step for step, files in steps.items() if _DELETING in files)
        return Survey(
            steps={step: steps[step] for step in sorted(steps) if step not in half},
            half_deleted=half,
            quarantined={name: aside[name] for name in sorted(aside, key=_order)},
        )

    def manifest(self, step: int) -> Manifest | None:
        """Reads the manifest of a checkpoint's files; None: another program saved the checkpoint.

        Raises:
          ManifestError: It differs from what was written.
        """
        try:
            return Manifest.from_text(self.store.read_text(f"{step}/{_MANIFEST}"))
        except FileNotFoundError:
            return None
        except (ManifestError, UnicodeDecodeError) as error:
            raise ManifestError(f"{_MANIFEST}: {error}") from error

    def damage(self, step: int, *, checksums: bool) -> str | None:
        """Returns the damage of a committed checkpoint; None: none was found."""
        try:
            manifest = self.manifest(step)
        except ManifestError as error:
            return str(error)
        return self._difference(step, manifest, self.store.files(str(step)), checksums=checksums)

    def info(
        self, step: int, files: Files | None = None, *, checksums: bool = False
    ) -> CheckpointInfo:
        """Returns information about a checkpoint; `files` are from a survey, or listed here."""
        files = self.store.files(str(step)) if files is None else files
        known: dict[str, Any] = {
            "step": step,
            "path": self.store.path(str(step)),
            "bytes": _bytes(files),
        }
        if COMMIT_FILE not in files:
            return CheckpointInfo(state="uncommitted", reason="it was not finished", **known)
        nanoseconds = self.store.read_json(f"{step}/{_ORBAX_METADATA}").get(
            "commit_timestamp_nsecs"
        )
        known["time"] = rfc3339(nanoseconds / 1e9) if isinstance(nanoseconds, int) else None
        try:
            manifest = self.manifest(step)
        except ManifestError as error:
            return CheckpointInfo(state="damaged", reason=str(error), **known)
        if manifest is not None:
            progress = Progress.from_json(manifest.progress)
            known |= {"epoch": progress.epoch, "loss": progress.loss}
        damage = self._difference(step, manifest, files, checksums=checksums)
        if damage is not None:
            return CheckpointInfo(state="damaged", reason=damage, **known)
        return CheckpointInfo(state="committed", **known)

    def quarantined_info(self, name: str, files: Files) -> CheckpointInfo:
        """Returns information about a quarantined checkpoint."""
        aside = f"{_QUARANTINE}/{name}"
        known = self.store.read_json(f"{aside}/{_REASON}")
        return CheckpointInfo(
            step=_order(name)[0],
            state="quarantined",
            path=self.store.path(aside),
            epoch=known.get("epoch"),
            loss=known.get("loss"),
            bytes=_bytes(files),
            time=known.get("time"),
            reason=known.get("reason", "not known"),
        )

    def quarantine(self, info: CheckpointInfo, *, now: str) -> str:
        """Moves a checkpoint aside at a time (RFC 3339); returns the new path."""
        taken = set(self.store.directories(_QUARANTINE))
        number = next(n for n in itertools.count(1) if f"{info.step}-{n}" not in taken)
        target = f"{_QUARANTINE}/{info.step}-{number}"
        known = dataclasses.asdict(info) | {"time": now, "committed": info.time}
        # First, so that an interrupted move leaves nothing that looks complete or has no reason.
        self.store.write_text(f"{info.step}/{_REASON}", json.dumps(known, indent=1))
        if not self.store.is_local:
            self.store.remove(f"{info.step}/{COMMIT_FILE}")
        self.store.move_tree(str(info.step), target)
        self._thin_quarantine()
        return self.store.path(target)

    def delete(self, step: int) -> None:
        """Deletes a checkpoint; an interrupted deletion never leaves one that looks complete."""
        # (On a full disk there may be no room for the mark: then an interruption leaves one that is
        # not finished.)
        with contextlib.suppress(OSError):
            self.store.write_text(f"{step}/{_DELETING}", "what is left here is no checkpoint\n")
        self.store.remove(f"{step}/{COMMIT_FILE}")
        self.store.remove_tree(str(step))

    def _difference(
        self, step: int, manifest: Manifest | None, files: Files, *, checksums: bool
    ) -> str | None:
        if manifest is None:
            whole = any(name.startswith(f"{STATE_ITEM}/") for name in files)
            return None if whole else f"{STATE_ITEM}/ is missing"
        if checksums and manifest.has_checksums:
            files = self.store.files(str(step), checksums=True)
        return manifest.difference(files)

    def _thin_quarantine(self) -> None:
        names = self.store.directories(_QUARANTINE)
        known = {name: self.store.read_json(f"{_QUARANTINE}/{name}/{_REASON}") for name in names}
        useless = [name for name in names if known[name].get("state") == "uncommitted"]
        useless.sort(key=lambda name: str(known[name].get("time")))
        for name in useless[:-_UNCOMMITTED_KEPT]:
            self.store.remove_tree(f"{_QUARANTINE}/{name}")


def _order(name: str) -> tuple[int, int]:
    step, _, number = name.partition("-")
    return int(step), int(number)


def _bytes(files: Files) -> int:
    return sum(record.size for record in files.values())


def write_manifest(
    directory: str | os.PathLike[str], progress: Progress, *, checksums: bool
) -> None:
    """Writes the progress of training, and the manifest of a checkpoint's files.

    The checkpoint is complete except for this and the commit file.
    """
    store = Store(directory)
    files = store.files(STATE_ITEM, checksums=checksums)
    manifest = Manifest(
        progress=progress.to_json(),
        files={f"{STATE_ITEM}/{name}": record for name, record in files.items()},
    )
    store.write_text(_MANIFEST, manifest.to_text())
