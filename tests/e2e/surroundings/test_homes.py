"""Homes that cannot be written: of no user, read-only, or on a server that distrusts root."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from harness.embedded import KIND
from harness.layers.needed_programs import needed_program
from harness.machines import Machine, is_possible, machine
from harness.processes import DEADLINE_S, REPOSITORY
from shared_pathways_service.testing.testbed.launching import INSTALL_UTIL_LINUX

pytestmark = pytest.mark.skipif(not is_possible(), reason="this user may not make namespaces")

SPS = (sys.executable, "-m", "shared_pathways_service.cli")
COMPUTES = "import jax.numpy as jnp; print(float(jnp.arange(4.0).sum()))"
CONNECTS = f"""
from shared_pathways_service import isc_pathways
with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}):
    {COMPUTES}
"""
#: One after the other; the service of the first connection serves the others.
COMMANDS = (
    ((*SPS, "list"), ""),
    ((*SPS, "run", f"--slices={KIND}=1", "--", sys.executable, "-c", COMPUTES), "6.0\n"),
    ((sys.executable, "-c", CONNECTS), "6.0\n"),
)
#: Where any user may make files.
COMMON = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for temporary files, whose path suits sockets."""
    found = Path(tempfile.mkdtemp(prefix="sps-tmp-"))
    yield found
    shutil.rmtree(found)


def variables(home: Path, temporary: Path, **others: str) -> dict[str, str]:
    """Returns the environment of a user who has set nothing."""
    dropped = ("SPS_STATE_DIR", "SPS_CACHE_DIR", "SPS_RUNTIME_DIR", "SPS_CONFIG")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("XDG_")
    }
    paths = {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(REPOSITORY)}
    return {**kept, **paths, "PYTHONDONTWRITEBYTECODE": "1", **others}


def run(
    prefix: Sequence[str], words: Sequence[str], env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=env,
        cwd=REPOSITORY,
    )


def assert_works(prefix: Sequence[str], env: Mapping[str, str], state: Path) -> None:
    """Runs all commands; each says in one line where its files go."""
    for words, printed in COMMANDS:
        done = run(prefix, words, env)
        assert done.returncode == 0, done
        assert done.stdout.endswith(printed), done
        [line] = [line for line in done.stderr.splitlines() if "is used instead" in line]
        assert f"{state} is used instead" in line
        assert "SPS_STATE_DIR names another directory" in line


#: Makes some directories below one that others may not enter accessible in its place.
OPENS = """
closed=$1; new=$2; shift 2
for path; do
  mkdir -p "$new/$path"
  mount --bind "$closed/$path" "$new/$path"
done
mount --rbind "$new" "$closed"
"""


def open_python(place: Machine, scratch: Path) -> None:
    """Lets every user of a machine run this Python, which may be in root's home."""
    needed = {Path(sys.prefix), Path(sys.base_prefix), REPOSITORY}
    if sys.pycache_prefix is not None:
        # (Otherwise each process would compile all modules.)
        needed.add(Path(sys.pycache_prefix))
    parents = {parent for path in needed for parent in path.parents}
    for closed in [path for path in parents if not path.stat().st_mode & stat.S_IXOTH]:
        below = [str(path.relative_to(closed)) for path in needed if path.is_relative_to(closed)]
        words = ["sh", "-euc", OPENS, "sh", str(closed), str(scratch / closed.name), *below]
        (scratch / closed.name).mkdir(mode=0o755)
        subprocess.run([*place.prefix(Path("/")), *words], check=True)


def owned_by(user: int) -> set[Path]:
    """Returns what a user has in the directories in which any user may make files."""
    found = [path for common in COMMON if common.is_dir() for path in common.iterdir()]
    return {path for path in found if path.lstat().st_uid == user}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Machine]:
    with machine("here", tmp_path) as running:
        yield running


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user id")
def test_a_user_id_without_a_home_has_all_files_in_temporary_directories(
    place: Machine, temporary: Path
) -> None:
    needed_program("setpriv", INSTALL_UTIL_LINUX)
    user = 100_000 + os.getpid() % 100_000
    os.chown(temporary, user, user)
    scratch = Path(tempfile.mkdtemp(prefix="sps-open-"))
    scratch.chmod(0o755)
    runtime = Path(f"/tmp/sps-{user}")
    before = sorted(Path("/").iterdir())
    try:
        open_python(place, scratch)
        take_id = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        prefix = [*place.prefix(), *take_id]
        assert_works(prefix, variables(Path("/"), temporary), temporary / f"sps-{user}-state")
        made = {path.name for path in temporary.iterdir()}
        assert {f"sps-{user}-state", f"sps-{user}-cache"} <= made
        assert all(name.startswith(f"sps-{user}-") for name in made), made
        for directory in (runtime, *temporary.iterdir()):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        left = owned_by(user)
        place.fail()
        # (Large arrays pass through a directory of the running service.)
        assert {path for path in left if path.parent != Path("/dev/shm")} == {temporary, runtime}
        assert sorted(Path("/").iterdir()) == before
    finally:
        place.fail()
        for directory in (runtime, scratch, *Path("/dev/shm").glob(f"sps-{user}-*")):
            shutil.rmtree(directory, ignore_errors=True)


def test_a_read_only_home_stays_as_it_was(place: Machine, tmp_path: Path, temporary: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "notes").touch()
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"'
    subprocess.run([*place.prefix(), "sh", "-c", mount, str(home)], check=True)
    env = variables(home, temporary, SPS_RUNTIME_DIR=os.environ["SPS_RUNTIME_DIR"])
    assert run(place.prefix(), ("touch", str(home / "file")), env).returncode != 0
    state = temporary / f"sps-{os.getuid()}-state"
    assert_works(place.prefix(), env, state)
    assert [*home.rglob("*")] == [home / "notes"]
    assert (state / "logs").is_dir()


@pytest.fixture
def squashed(tmp_path: Path) -> list[str]:
    """The prefix of commands of a root that has no rights over others' files, as with NFS."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    return ["unshare", "--user", "--map-root-user"]


def given_away(path: Path) -> Path:
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    return path


def test_a_home_that_root_may_not_enter_is_not_used(
    squashed: list[str], tmp_path: Path, temporary: Path
) -> None:
    home = given_away(tmp_path / "home")
    assert run(squashed, ("ls", str(home)), os.environ).returncode != 0
    done = run(squashed, (*SPS, "list"), variables(home, temporary))
    assert done.returncode == 0, done
    assert f"{home}/.local/state" in done.stderr
    assert f"{temporary / 'sps-0-state'} is used instead" in done.stderr
    assert [*home.iterdir()] == []


@pytest.mark.parametrize("below", ["", "state"])
def test_a_directory_of_a_server_that_distrusts_root_is_refused_with_what_to_do(
    below: str, squashed: list[str], tmp_path: Path, temporary: Path
) -> None:
    state = given_away(tmp_path / "home") / below
    env = variables(tmp_path, temporary, SPS_STATE_DIR=str(state))
    refused = run(squashed, (*SPS, "run", "--", "true"), env)
    assert refused.returncode == 125
    reason = "Permission denied" if below else "belongs to user 65534"
    assert reason in refused.stderr
    assert str(state) in refused.stderr
    assert "set SPS_STATE_DIR to another directory, such as a local one" in refused.stderr
    assert "root_squash" in refused.stderr
