"""Files of `sps run` that cannot be written: the error comes before any slice is asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.embedded import embedded
from harness.file_faults import FileFault
from shared_pathways_service.cli.event_file import appended_events
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event
from shared_pathways_service.jax_client import standalone
from shared_pathways_service.runtime.settings import Settings
from stress.file_faults.outcomes import sps_with

#: `sps` itself failed, not the program.
OWN_FAILURE = 125


def nothing() -> None:
    """Lets the command make all its directories."""


def a_plugin_with_a_missing_file() -> None:
    root = standalone.place(Settings.load().cache_dir)
    next(root.rglob("strict.py")).unlink()


@pytest.mark.parametrize(
    ("setting", "before", "first", "failing"),
    [
        ("SPS_CACHE_DIR", nothing, 1, "os.mkdir"),
        ("SPS_CACHE_DIR", a_plugin_with_a_missing_file, 2, "write"),
        ("SPS_STATE_DIR", nothing, 1, "os.mkdir"),
        ("SPS_STATE_DIR", nothing, 2, "open"),
    ],
)
def test_a_full_disk_is_explained_before_slices_are_asked_for(
    setting: str, before: Callable[[], None], first: int, failing: str, tmp_path: Path
) -> None:
    before()
    settings = Settings.load()
    directory = settings.directories[setting]
    fault = FileFault(
        role="cli run",
        directory=directory,
        first=first,
        number=errno.ENOSPC,
        told=tmp_path / "told",
    )
    done = sps_with(fault, "run", "--slices=tpuv6e:2x2=1", "--", "true")
    assert fault.failed[0].split()[0] == failing
    assert done.returncode == OWN_FAILURE
    assert f"cannot write in {directory}: {os.strerror(errno.ENOSPC)}" in done.stderr
    assert f"free space there, or set {setting} to another directory" in done.stderr
    # No service was started for slices, and what was half written is gone.
    assert not settings.runtime_dir.exists()
    assert [*settings.state_dir.glob("run-*"), *settings.cache_dir.rglob("tmp*")] == []


def test_code_in_a_cache_that_others_can_write_is_not_run() -> None:
    cache = Settings.load().cache_dir
    cache.mkdir(parents=True, exist_ok=True)
    with embedded(1):
        for mode, refuses in ((0o755, False), (0o775, False), (0o777, True)):
            cache.chmod(mode)
            # (The service has no such type.)
            done = sps_with(None, "run", "--slices=tpuv6e:4x4=1", "--", "true")
            assert done.returncode == OWN_FAILURE
            assert (f"chmod 700 {cache}" in done.stderr) == refuses, done.stderr


def test_events_are_appended_until_the_disk_is_full(tmp_path: Path) -> None:
    event = Event.of("tenant.notice", reason="maintenance")
    path, warnings = tmp_path / "events", list[str]()
    for _ in range(2):
        with appended_events(path, warnings.append) as append:
            append(event)
    assert path.read_text() == f"{event.to_json()}\n" * 2
    # One that a full disk has cut does not take the next one with it.
    path.write_text('{"kind": "ten')
    with appended_events(path, warnings.append) as append:
        append(event)
        append(event)
    assert path.read_text() == '{"kind": "ten\n' + f"{event.to_json()}\n" * 2
    assert warnings == []
    full = Path("/dev/full")
    with appended_events(full, warnings.append) as append:
        append(event)
        append(event)
    assert warnings == [
        f"no more events are written to --json-events={full}: {os.strerror(errno.ENOSPC)}"
    ]


def test_a_file_of_events_that_cannot_be_opened_names_the_option(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "events"
    with (
        pytest.raises(InvalidRequestError, match=f"--json-events='{path}'") as caught,
        appended_events(path, print),
    ):
        pass
    assert os.strerror(errno.ENOENT) in caught.value.message
