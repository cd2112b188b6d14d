"""Where large buffers may go: only where there is plenty of memory for them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.supervisor import shared_memory
from shared_pathways_service.servers.supervisor.shared_memory import SharedMemory

BLOCK = 4096


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the file system says of itself; a machine of 64 GiB."""
    says = SimpleNamespace(
        f_frsize=BLOCK, f_blocks=(32 << 30) // BLOCK, f_bavail=(32 << 30) // BLOCK
    )
    monkeypatch.setattr(os, "statvfs", lambda _path: says)
    monkeypatch.setattr(shared_memory, "usable_memory", lambda: 64 << 30)
    return says


def of_service(root: Path, runtime: str = "r") -> SharedMemory:
    return SharedMemory(Settings.load(shared_memory_dir=root, runtime_dir=root / runtime))


def test_each_service_has_its_own(own_directories: Path, memory: SimpleNamespace) -> None:
    first, second = of_service(own_directories, "r1"), of_service(own_directories, "r2")
    first.create()
    second.create()
    made = first.make("abc")
    assert made is not None
    assert made.stat().st_mode & 0o777 == 0o700
    assert second.make("abc") not in {None, made}
    (made / "lt_1").touch()
    first.remove("abc")
    assert not made.exists()
    # What a killed one left goes with the start of the next.
    (made.parent / "old").mkdir()
    first.create()
    assert not list(made.parent.iterdir())
    first.close()
    assert not made.parent.exists()


def test_the_64_mib_of_a_container_are_not_enough(
    own_directories: Path, memory: SimpleNamespace
) -> None:
    memory.f_blocks = memory.f_bavail = (64 << 20) // BLOCK
    small = of_service(own_directories)
    small.create()
    assert small.make("abc") is None
    small.remove("abc")
    small.close()
    assert not list(own_directories.glob("sps-*"))


def test_no_proxy_gets_one_while_it_is_half_full(
    own_directories: Path, memory: SimpleNamespace
) -> None:
    full = of_service(own_directories)
    full.create()
    memory.f_bavail = memory.f_blocks // 2 - 1
    assert full.make("abc") is None
    memory.f_bavail = memory.f_blocks // 2
    assert full.make("abc") is not None
    full.close()


def test_another_users_directory_is_left_alone(
    own_directories: Path, memory: SimpleNamespace
) -> None:
    first = of_service(own_directories)
    first.create()
    [root] = own_directories.glob("sps-*")
    root.rmdir()
    root.symlink_to(own_directories)
    first = of_service(own_directories)
    first.create()
    assert first.make("abc") is None


def test_none_and_nowhere(own_directories: Path) -> None:
    for where in ("none", own_directories / "nowhere"):
        memory = SharedMemory(Settings.load(shared_memory_dir=where))
        memory.create()
        assert memory.make("abc") is None
        memory.close()
