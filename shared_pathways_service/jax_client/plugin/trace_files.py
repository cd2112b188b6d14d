"""Writes the files of a profile where XProf and TensorBoard look for them, and one for Perfetto."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "MOST_EVENTS",
    "PERFETTO",
    "add_files",
    "began_at",
    "files_below",
    "new_session",
    "written_since",
]

#: The name of the file for Perfetto, which is the one that JAX gives it.
PERFETTO = "perfetto_trace.json.gz"
#: The most events of that file: Perfetto's page holds not many more.
MOST_EVENTS = 1_000_000
_END = ".xplane.pb"


def files_below(log_dir: str) -> dict[Path, int]:
    """Returns the files of all profiles below a directory, and when each was changed."""
    found = {}
    for path in (Path(log_dir) / "plugins" / "profile").glob(f"*/*{_END}"):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            found[path] = path.stat().st_mtime_ns
    return found


def written_since(log_dir: str, before: Mapping[Path, int]) -> Path | None:
    """Returns the file of a profile that was written last; None: none was.

    Args:
      log_dir: The directory that was given to JAX.
      before: Its `files_below` before.
    """
    changed = {p: at for p, at in files_below(log_dir).items() if before.get(p) != at}
    return max(changed, key=lambda path: changed[path], default=None)


def new_session(log_dir: Path) -> Path:
    """Makes the folder of a new profile, which is named by the time, as JAX's are."""
    folder = log_dir / "plugins" / "profile"
    name = datetime.datetime.now().astimezone().strftime("%Y_%m_%d_%H_%M_%S")
    number = 1
    while True:
        made = folder / (name if number == 1 else f"{name}-{number}")
        try:
            made.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return made


def began_at(path: Path) -> int:
    """Returns when the profile in a file began, in ns since 1970; 0: it is not known."""
    # (Planes do not keep the data that they are of, here and below.)
    data = _read(path)
    plane = data.find_plane_with_name("Task Environment")
    for name, value in [] if plane is None else plane.stats:
        if name == "profile_start_time":
            return int(value)
    return 0


def add_files(session: Path, files: Mapping[str, bytes], most_events: int = MOST_EVENTS) -> str:
    """Writes files of processes beside those of a profile, and all in one for Perfetto.

    Returns:
      What is missing, and why; an empty text if nothing is.
    """
    written = []
    for name, data in files.items():
        # (The name comes from the proxy: no folder.)
        path = session / Path(name).name
        path.write_bytes(data)
        written.append(path)
    # Devices first: a program may have millions of events of its own.
    others = [path for path in sorted(session.glob(f"*{_END}")) if path not in written]
    events = _Events(most_events)
    with gzip.open(session / PERFETTO, "wt", encoding="utf-8", compresslevel=5) as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for number, event in enumerate(events.of([*sorted(written), *others])):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    if not events.cut:
        return ""
    return (
        f"{PERFETTO} has {most_events} events; "
        f"XProf also shows the last ones of {', '.join(events.cut)}"
    )


class _Events:
    """The events of files in Chrome's trace format, which Perfetto reads.

    Attributes:
      cut: The files of which not all events are there.
    """

    def __init__(self, most: int) -> None:
        self.cut: list[str] = []
        self._left = most
        self._process = 0

    def of(self, paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
        """Yields those of all files, each of which has an equal part of those that are left."""
        for number, path in enumerate(paths):
            part = self._left // (len(paths) - number)
            self._left -= part
            yield from self._of_file(path, part)

    def _of_file(self, path: Path, part: int) -> Iterator[dict[str, Any]]:
        data = _read(path)
        for plane in sorted(data.planes, key=lambda plane: "/device:" not in plane.name):
            lines = [line for line in plane.lines if line.name]
            if not lines:
                continue
            # Each plane is a process.
            self._process += 1
            name = f"{path.name.removesuffix(_END)} {plane.name}"
            yield _named("process", name, self._process, 0)
            for thread, line in enumerate(lines, 1):
                yield _named("thread", line.name, self._process, thread)
                for event in line.events:
                    if not part:
                        self.cut.append(path.name)
                        return
                    part -= 1
                    yield {
                        "ph": "X",
                        "pid": self._process,
                        "tid": thread,
                        "ts": event.start_ns / 1000,
                        "dur": event.duration_ns / 1000,
                        "name": event.name,
                    }
        self._left += part


def _named(kind: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "M",
        "pid": process,
        "tid": thread,
        "name": f"{kind}_name",
        "args": {"name": name},
    }


def _read(path: Path) -> Any:
    data: Any = importlib.import_module("jaxlib._profile_data")
    return data.ProfileData.from_file(str(path))
