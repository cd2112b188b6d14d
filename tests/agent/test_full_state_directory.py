"""A state directory on a file system that is full, or becomes full."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.small_disk import IS_POSSIBLE, fill, small_disk
from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.errors import PreflightError
from shared_pathways_service.events import Event
from tests.agent.support import Bench, eventually, serve

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="only root can mount a small file system")

#: Pages of the small file system: room for a journal and a log, but not for more.
_SIZE = 64 << 10


@pytest.fixture
def small() -> Iterator[Path]:
    """A directory on a small file system of its own."""
    with small_disk(_SIZE, files=32) as directory:
        yield directory


def fill_with_files(directory: Path) -> None:
    """Takes all files that are left to be made; a file can still grow."""
    with contextlib.suppress(OSError):
        for number in range(64):
            (directory / f"file-{number}").touch()


@pytest.fixture
def small_bench(own_directories: Path, small: Path) -> Bench:
    """A bench whose journal and log are in the small file system."""
    bench = Bench(own_directories)
    bench.log = small / "agents" / "agent.log"
    bench.log.parent.mkdir(mode=0o700)
    bench.journal_directory = small / "journal"
    bench.journal = Journal(bench.journal_directory)
    return bench


def assert_explained(error: PreflightError, directory: Path) -> None:
    assert f"cannot write in {directory}: No space left on device" in error.message
    assert error.hint == "free space there, or set SPS_STATE_DIR to another directory"


def test_without_space_nothing_is_created(small: Path, small_bench: Bench) -> None:
    fill(small)
    with small_bench.session(small_bench.start()) as (session, _):
        with pytest.raises(PreflightError) as caught:
            serve(session)
        assert_explained(caught.value, small)
        assert session.close("failed") is None
    assert [call.split()[0] for call in small_bench.home.calls] == ["preflight", "delete_proxy"]
    assert small_bench.nothing_left()


def test_without_room_for_a_file_no_agent_is_started(small: Path, small_bench: Bench) -> None:
    fill_with_files(small)
    with (
        pytest.raises(PreflightError) as caught,
        small_bench.session(small_bench.start()),
    ):
        pass
    assert_explained(caught.value, small_bench.log.parent)
    assert small_bench.home.calls == []
    assert small_bench.nothing_left()


def test_a_session_outlives_the_end_of_space(small: Path, small_bench: Bench) -> None:
    with small_bench.session(small_bench.start()) as (session, heard):
        serve(session)
        fill(small)
        # (Each is a change of the entry, and lines of the log.)
        for number in range(40):
            small_bench.home.tell_all(
                small_bench.home.proxies[0],
                Event.of("tenant.notice", reason=f"notice {number}: {'x' * 4000}"),
            )
        eventually(lambda: len(heard.events) > 40, "the events")
        assert session.agent_alive
        assert session.close("done") is None
    assert small_bench.nothing_left()
