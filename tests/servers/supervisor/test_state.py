"""One service a directory, and what a killed one left: found by identity, never by a number."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import ended_process
from shared_pathways_service.errors import PreflightError
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import (
    ServiceState,
    claim,
    read_state,
    write_state,
)
from shared_pathways_service.runtime.processes import Identity, identity_of
from tests.servers.supervisor.support import assert_clean, sleeper


@pytest.fixture
def paths(tmp_path: Path) -> RuntimePaths:
    return RuntimePaths(tmp_path)


def state_of(*children: Identity, detached: bool = False) -> ServiceState:
    myself = identity_of(os.getpid())
    return ServiceState(
        supervisor=myself,
        address="unix:/nowhere",
        version="1",
        protocol_min=1,
        protocol_max=1,
        slices={"tpuv6e:2x2": 2},
        spares=1,
        since="2026-01-01T00:00:00.000Z",
        detached=detached,
        log_dir="/nowhere",
        children=children,
    )


def test_the_state_file_says_what_was_written_to_its_user_only(paths: RuntimePaths) -> None:
    state = state_of(Identity(pid=1, start="2"))
    write_state(paths, state)
    assert read_state(paths) == state
    assert paths.state.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in paths.directory.iterdir()] == ["state.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"supervisor": {"pid": "x"}}'])
def test_a_state_file_that_makes_no_sense_is_none(text: str, paths: RuntimePaths) -> None:
    paths.state.write_text(text)
    assert read_state(paths) is None


def test_a_second_claim_is_refused_naming_the_first(paths: RuntimePaths) -> None:
    with claim(paths):
        write_state(paths, state_of())
        with (
            pytest.raises(PreflightError, match=f"process {os.getpid()} with tpuv6e:2x2=2"),
            claim(paths),
        ):
            pass
        assert read_state(paths) is not None, "the first one's files are untouched"
    assert_clean(paths)
    with claim(paths):
        pass


@pytest.mark.parametrize(
    ("detached", "how"),
    [
        (False, "end it with Ctrl-C in its terminal or `kill {pid}`, or"),
        (True, "end it with `kill {pid}` (it also ends by itself soon after its last user), or"),
    ],
    ids=["in a terminal", "detached"],
)
def test_a_refused_claim_says_how_to_end_the_first(
    paths: RuntimePaths, *, detached: bool, how: str
) -> None:
    with claim(paths):
        write_state(paths, state_of(detached=detached))
        with pytest.raises(PreflightError) as caught, claim(paths):
            pass
    assert how.format(pid=os.getpid()) in str(caught.value.hint)


def test_a_refused_claim_does_not_name_a_service_that_was_killed(paths: RuntimePaths) -> None:
    with claim(paths):
        killed = dataclasses.replace(state_of(), supervisor=ended_process())
        write_state(paths, killed)
        with pytest.raises(PreflightError, match="is just starting or ending"), claim(paths):
            pass


@pytest.mark.race
def test_a_lock_whose_holder_was_killed_is_free(paths: RuntimePaths) -> None:
    source = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from shared_pathways_service.runtime.embedded.file_names import RuntimePaths\n"
        "from shared_pathways_service.runtime.embedded.state_file import claim\n"
        "with claim(RuntimePaths(Path(sys.argv[1]))):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    repository = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", source, str(paths.directory)], cwd=repository, check=False
    )
    assert done.returncode == -9
    with claim(paths):
        pass


@pytest.mark.race
def test_what_a_killed_service_left_is_taken_down(paths: RuntimePaths) -> None:
    names = ("s.sock", "rm.db", "rm.db-wal", "p1.token", "p1.exit", "p1.exit.partial")
    for name in names:
        (paths.directory / name).touch()
    with sleeper() as stale, sleeper() as innocent:
        left = identity_of(stale.pid)
        # Its number is in the file; it is not the one that was meant.
        recycled = Identity(pid=innocent.pid, start="long ago")
        gone = Identity(pid=2**22 - 1, start="1")
        write_state(paths, state_of(left, recycled, gone))
        with claim(paths):
            assert not left.is_alive()
            assert innocent.poll() is None
            assert read_state(paths) is None
        assert_clean(paths)


def test_a_directory_with_a_service_of_another_machine_is_refused_and_left_as_it_is(
    paths: RuntimePaths,
) -> None:
    there = Identity(pid=os.getpid(), start="another-boot/1", machine="0a1b@far")
    paths.tenant_token.touch()
    write_state(paths, dataclasses.replace(state_of(), supervisor=there))
    with (
        pytest.raises(PreflightError, match="service of another machine, far") as caught,
        claim(paths),
    ):
        pass
    assert f"remove {paths.state}" in str(caught.value.hint)
    assert paths.tenant_token.exists()
    # (It is not locked afterwards.)
    paths.state.unlink()
    with claim(paths):
        pass
    assert_clean(paths)


def test_a_state_file_of_an_earlier_release_from_before_a_restart_is_removed(
    paths: RuntimePaths,
) -> None:
    write_state(paths, dataclasses.replace(state_of(), supervisor=Identity(pid=1, start="b/1")))
    with claim(paths):
        assert read_state(paths) is None
