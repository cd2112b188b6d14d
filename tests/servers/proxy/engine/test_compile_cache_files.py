"""The compile cache's files: damaged and foreign entries, eviction, full disks."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.processes import REPOSITORY
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.servers.proxy.engine.compile_cache import CacheCounts, CompileCache
from tests.servers.proxy.conftest import MakeClient, MakeProxy, StartProxy
from tests.servers.proxy.engine.cached_programs import FOUR, MACHINE, MakeCache, entries, run_double
from tests.servers.proxy.processes import address_of

# ---- what is wrong with an entry


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _cut_header(path: Path) -> None:
    os.truncate(path, 20)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def _other_format(path: Path) -> None:
    path.write_bytes(b"sps-xla0" + path.read_bytes()[8:])


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def _open_to_others(path: Path) -> None:
    path.chmod(0o620)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _another_programs(path: Path) -> None:
    key = hashlib.sha256(b"another").hexdigest()
    other = CompileCache(path.parent, 1 << 30, MACHINE)
    other.store(key, b"anything")
    other.close()
    (path.parent / f"{key}.xla").replace(path)


def _nothing_xla_knows(path: Path) -> None:
    cache = CompileCache(path.parent, 1 << 30, MACHINE)
    cache.store(path.stem, b"well kept, and no program")
    cache.close()


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _cut_header,
        _empty,
        _append,
        _flip_a_bit,
        _other_format,
        _garbage,
        _open_to_others,
        _link,
        _fifo,
        _another_programs,
        _nothing_xla_knows,
    ],
)
def test_a_damaged_or_foreign_entry_is_a_miss_and_is_replaced(
    damage: Callable[[Path], None],
    make_proxy: MakeProxy,
    connect: MakeClient,
    make_cache: MakeCache,
    directory: Path,
) -> None:
    run_double(connect(make_proxy(compile_cache=make_cache()).address))
    (entry,) = entries(directory)
    damage(entry)
    cache = make_cache()
    client = connect(make_proxy(compile_cache=cache).address)
    assert run_double(client) == (2 * FOUR).tobytes()
    assert cache.counts == CacheCounts(misses=1, rejected=1, stored=1)
    assert stat.S_ISREG(entry.lstat().st_mode)
    assert run_double(client) == (2 * FOUR).tobytes()
    assert cache.counts.hits == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_entry_is_a_miss(make_cache: MakeCache, directory: Path) -> None:
    cache = make_cache()
    key = cache.key(b"p")
    cache.store(key, b"data")
    os.chown(entries(directory)[0], 12345, 12345)
    assert cache.load(key, bytes) is None
    assert cache.counts.rejected == 1
    assert entries(directory) == []


def test_a_program_whose_loading_crashed_a_process_is_not_loaded_again(
    make_cache: MakeCache, directory: Path
) -> None:
    key = make_cache().key(b"p")
    make_cache().store(key, b"data")
    code = (
        "import os, sys; from pathlib import Path\n"
        "from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache\n"
        "cache = CompileCache(Path(sys.argv[1]), 1 << 30, b'a machine')\n"
        "cache.load(sys.argv[2], lambda data: os.abort())\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", code, str(directory), key], cwd=REPOSITORY, check=False
    )
    assert died.returncode < 0
    assert len(entries(directory)) == 1
    cache = make_cache()
    assert cache.counts.rejected == 1
    assert cache.load(key, bytes) is None
    # Those that live and may be loading are left alone.
    marks = list(directory.glob("loading-*"))
    assert len(marks) == 3
    for mark in marks:
        with mark.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ---- the directory


def test_a_directory_of_another_user_is_refused(
    make_cache: MakeCache, directory: Path, tmp_path: Path
) -> None:
    directory.mkdir(mode=0o755)
    with pytest.raises(AccessDenied):
        make_cache()
    directory.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(directory, 12345, 12345)
        with pytest.raises(AccessDenied):
            make_cache()
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(InvalidRequestError):
        make_cache()
    directory.unlink()
    make_cache()


def test_a_proxy_runs_without_a_refused_directory(
    start_proxy: StartProxy, connect: MakeClient, directory: Path
) -> None:
    directory.mkdir(mode=0o755)
    proxy = start_proxy(f"--compile_cache_dir={directory}")
    proxy.wait_for_line("Compiled programs are not cached: .* can be accessed by other users")
    assert run_double(connect(address_of(proxy))) == (2 * FOUR).tobytes()
    assert list(directory.iterdir()) == []
    assert proxy.stop() == 0


def test_the_least_recently_used_entry_is_evicted_first(
    make_cache: MakeCache, directory: Path
) -> None:
    limit, data = 100_000, bytes(9_900)
    cache = make_cache(limit)
    keys = [cache.key(bytes([number])) for number in range(20)]
    now = 1_000_000_000
    for number, key in enumerate(keys[:10]):
        cache.store(key, data)
        os.utime(directory / f"{key}.xla", (now + number,) * 2)
    assert len(entries(directory)) == 10
    assert cache.load(keys[0], bytes) == data  # used just now
    cache.store(keys[10], data)
    left = {path.stem for path in entries(directory)}
    assert {keys[0], keys[10]} <= left
    assert keys[1] not in left
    assert cache.counts.evicted > 0
    for key in keys[11:]:
        cache.store(key, data)
        assert sum(path.stat().st_size for path in entries(directory)) <= limit
    # One that would take the place of many is not kept at all.
    big = cache.key(b"big")
    cache.store(big, bytes(limit // 2))
    assert cache.load(big, bytes) is None


def test_several_writers_keep_to_the_limit(make_cache: MakeCache, directory: Path) -> None:
    limit = 160_000
    caches = [make_cache(limit) for _ in range(3)]
    for number in range(90):
        cache = caches[number % 3]
        cache.store(cache.key(number.to_bytes(2, "big")), bytes(5_000))
        held = sum(path.stat().st_size for path in entries(directory))
        assert held <= limit + 3 * (limit // 16)


def test_stale_drafts_are_cleared_away(make_cache: MakeCache, directory: Path) -> None:
    cache = make_cache()
    stale, fresh = directory / "draft-0", directory / "draft-1"
    for draft in (stale, fresh):
        draft.touch()
    os.utime(stale, (1_000_000_000,) * 2)
    cache.store(cache.key(b"p"), b"data")
    assert not stale.exists()
    assert fresh.exists()


def test_two_writers_of_one_entry_do_no_harm(make_cache: MakeCache, directory: Path) -> None:
    caches = [make_cache(), make_cache()]
    key = caches[0].key(b"p")
    assert caches[1].key(b"p") == key
    for cache in caches:
        cache.store(key, b"the same program")
    assert [cache.load(key, bytes) for cache in caches] == [b"the same program"] * 2
    assert len(entries(directory)) == 1


def test_a_full_disk_is_a_miss_and_is_logged_once(
    make_proxy: MakeProxy,
    connect: MakeClient,
    make_cache: MakeCache,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cache = make_cache()

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        client = connect(make_proxy(compile_cache=cache).address)
        assert [run_double(client), run_double(client)] == [(2 * FOUR).tobytes()] * 2
    assert cache.counts == CacheCounts(misses=2)
    assert capfd.readouterr().err.count("No space left on device") == 1
    assert not [path for path in directory.iterdir() if path.name.startswith("draft-")]


def test_cached_programs_are_compiled_despite_a_full_disk(
    make_proxy: MakeProxy,
    connect: MakeClient,
    make_cache: MakeCache,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cache = make_cache()
    client = connect(make_proxy(compile_cache=cache).address)
    run_double(client)

    def full(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert [run_double(client), run_double(client)] == [(2 * FOUR).tobytes()] * 2
    assert cache.counts.hits == 0
    assert capfd.readouterr().err.count("No space left on device") == 1
    assert run_double(client) == (2 * FOUR).tobytes()
    assert cache.counts.hits == 1


def test_emptying_the_cache_directory_does_no_harm(make_cache: MakeCache, directory: Path) -> None:
    cache = make_cache()
    key = cache.key(b"p")
    cache.store(key, b"data")
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    assert cache.load(key, bytes) is None
    cache.store(key, b"data")

    def load(data: bytes) -> bytes:
        # Should it end the process, the next one finds what it was.
        (mark,) = directory.glob("loading-*")
        assert mark.read_text() == key
        return data

    assert cache.load(key, load) == b"data"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
