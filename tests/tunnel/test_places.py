"""Sockets have a place while their process lives, and are swept when it was killed."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shared_pathways_service.tunnel.places import remove_abandoned, socket_place

OWNER = """
import pathlib, socket, sys
from shared_pathways_service.tunnel.places import socket_place
with socket_place(pathlib.Path(sys.argv[1])) as path:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory(own_directories: Path) -> Path:
    made = own_directories / "r"
    made.mkdir()
    return made


def test_a_place_is_gone_after_its_use(directory: Path) -> None:
    with socket_place(directory) as first, socket_place(directory) as second:
        assert first != second
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(first))
            remove_abandoned(directory)
            assert first.is_socket()
    assert not list(directory.iterdir())


@pytest.mark.race
def test_the_socket_of_a_killed_process_is_swept_and_not_before(directory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as owner:
        assert owner.stdout
        path = Path(owner.stdout.readline().strip())
        try:
            remove_abandoned(directory)
            assert path.is_socket()
        finally:
            owner.kill()
    remove_abandoned(directory)
    assert not list(directory.iterdir())


def test_nothing_else_is_swept(directory: Path) -> None:
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    kept = elsewhere / "s"
    kept.touch()
    (directory / "t-link").symlink_to(elsewhere)
    full = directory / "t-full"
    full.mkdir()
    (full / "other").touch()
    remove_abandoned(directory)
    remove_abandoned(directory / "missing")
    assert kept.exists()
    assert (full / "other").exists()
