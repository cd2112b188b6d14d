"""Writes the files of a profile where XProf and TensorBoard look for them, and one for Perfetto."""

from __future__ import annotations

import datetime
import gzip
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["PERFETTO", "add_files", "began_at", "new_session", "newest_session", "sessions"]

#: The name of the file for Perfetto, which is the one that JAX gives it.
PERFETTO = "perfetto_trace.json.gz"
#: The most events of that file: Perfetto's page holds not many more.
_MOST_EVENTS = 1_000_000
_END = ".xplane.pb"


def sessions(log_dir: str) -> set[Path]:
    """Returns the folders of the profiles below a directory."""
    return {path.parent for path in (Path(log_dir) / "plugins" / "profile").glob(f"*/*{_END}")}


def newest_session(log_dir: str, before: set[Path]) -> Path | None:
    """Returns the folder of the profile that was written last; None: there is none.

    Args:
      log_dir: The directory that was given to JAX.
      before: The folders before it was written.
    """
    found = sessions(log_dir)
    return max(found - before or found, key=lambda path: path.stat().st_mtime_ns, default=None)


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


def began_at(session: Path) -> int:
    """Returns when the profile written last began, in ns since 1970; 0: it is not known."""
    # (JAX names folders by the second: an earlier profile may have left other files.)
    paths = session.glob(f"*{_END}")
    newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return 0
    # (Planes do not keep the data that they are of, here and below.)
    data = _read(newest)
    plane = data.find_plane_with_name("Task Environment")
    found = [] if plane is None else [v for name, v in plane.stats if name == "profile_start_time"]
    return int(found[0]) if found else 0


def add_files(session: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Writes files of processes beside those of a profile, and all in one for Perfetto."""
    written = []
    for name, data in files.items():
        # (The name comes from the proxy: no folder.)
        path = session / Path(name).name
        path.write_bytes(data)
        written.append(path)
    paths = sorted(session.glob(f"*{_END}"), key=lambda path: (path in written, path.name))
    with gzip.open(session / PERFETTO, "wt", encoding="utf-8", compresslevel=5) as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for number, event in enumerate(_events(paths)):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    return written


def _events(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """Yields events in Chrome's trace format, which Perfetto reads; each plane is a process."""
    left = _MOST_EVENTS
    process = 0
    for path in paths:
        data = _read(path)
        for plane in data.planes:
            lines = [line for line in plane.lines if line.name]
            if not lines:
                continue
            process += 1
            name = f"{path.name.removesuffix(_END)} {plane.name}"
            yield _named("process", name, process, 0)
            for thread, line in enumerate(lines, 1):
                yield _named("thread", line.name, process, thread)
                for event in line.events:
                    if not left:
                        return
                    left -= 1
                    yield {
                        "ph": "X",
                        "pid": process,
                        "tid": thread,
                        "ts": event.start_ns / 1000,
                        "dur": event.duration_ns / 1000,
                        "name": event.name,
                    }


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
