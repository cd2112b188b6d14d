"""Which files of a working directory are sent to a cluster."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.kubernetes import workdir_archive
from shared_pathways_service.homes.kubernetes.workdir_archive import BUCKET, SECRET, Room, pack


@pytest.fixture(params=[True, False], ids=["repository", "plain"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with rules, in a repository or not."""
    if request.param:
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("*.bin\n!kept.bin\n/out/\n")
    for name in ("train.py", "a.bin", "kept.bin", "out/x", "sub/out/x", "sub/b.bin", "sub/c.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "run.sh").write_text("#!/bin/sh")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link.py").symlink_to("sub/c.py")
    return tmp_path


def members(archived: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
        return {member.name: member for member in archive.getmembers()}


def packed(directory: Path, room: Room = SECRET) -> bytes:
    to = io.BytesIO()
    pack(directory, to, room)
    return to.getvalue()


def test_gits_rules_decide(directory: Path) -> None:
    found = members(packed(directory))
    expected = ".gitignore kept.bin link.py run.sh sub/c.py sub/out/x train.py"
    assert sorted(found) == expected.split()
    assert found["run.sh"].mode & 0o111
    assert found["link.py"].linkname == "sub/c.py"


def test_a_repository_within_is_sent_as_well(directory: Path) -> None:
    inner = directory / "inner"
    subprocess.run(["git", "init", "-q", inner], check=True)
    (inner / ".gitignore").write_text("secret\n")
    for name in ("secret", "lib.py"):
        (inner / name).write_text(name)
    found = members(packed(directory))
    assert [name for name in found if "inner" in name] == ["inner/.gitignore", "inner/lib.py"]


def test_a_directory_that_a_repository_ignores_is_sent(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # (As in a hook of another repository.)
    monkeypatch.setenv("GIT_DIR", str(directory / "missing"))
    assert list(members(packed(directory / "out"))) == ["x"]


def test_too_large_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(SECRET.archive + 1))
    with pytest.raises(InvalidRequestError, match=r"512 KiB.*weights \(524,289 bytes\)") as raised:
        packed(tmp_path)
    assert raised.value.field == "workdir"
    assert "--workdir-bucket" in (raised.value.hint or "")
    assert list(members(packed(tmp_path, BUCKET))) == ["weights"]


def test_what_cannot_be_compressed_is_not_written_beyond_the_limit(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(8 * SECRET.archive))
    to = io.BytesIO()
    with pytest.raises(InvalidRequestError, match="512 KiB"):
        pack(tmp_path, to, SECRET)
    assert to.tell() <= SECRET.archive


def test_packing_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    stop = threading.Event()
    stop.set()
    to = io.BytesIO()
    pack(tmp_path, to, SECRET, stop)
    assert to.tell() == 0


@pytest.mark.parametrize("target", ["/etc/hostname", "../other"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(InvalidRequestError, match="links within"):
        packed(tmp_path)


def test_a_file_that_vanishes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    # (It is called just before a file is read.)
    monkeypatch.setattr(workdir_archive, "_check_link", lambda _, path: path.unlink())
    with pytest.raises(InvalidRequestError, match=r"train\.py.*No such file") as raised:
        packed(tmp_path)
    assert raised.value.field == "workdir"


def test_git_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexec sleep 60\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SPS_PATIENCE", "0.01")
    with pytest.raises(InvalidRequestError, match=r"git lists within 0\.6 s"):
        packed(tmp_path)
