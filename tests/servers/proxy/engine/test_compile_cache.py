"""Programs compiled once: loaded by the next session and by another proxy, and never wrongly."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jaxlib.version
import numpy as np
import pytest

from harness.processes import REPOSITORY
from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import RawClient, single, split
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.servers.proxy.engine import compile_cache
from shared_pathways_service.servers.proxy.engine.compile_cache import CacheCounts, CompileCache
from shared_pathways_service.servers.proxy.xla import xla_executables
from shared_pathways_service.servers.proxy.xla.host_machine import machine_identity
from tests.servers.proxy.conftest import MakeClient, MakeProxy, StartProxy
from tests.servers.proxy.test_process import address_of

FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)
MACHINE = b"a machine"

#: One that calls LAPACK, and whose result depends on every bit of its input.
CHOLESKY = """
module @cholesky {
  func.func public @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %n = stablehlo.cholesky %x, lower = true : tensor<2x2xf32>
    return %n : tensor<2x2xf32>
  }
}
"""

#: What makes its result of nothing, as a function that initialises parameters does.
COUNT = """
module @count attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %n = stablehlo.iota dim = 0 : tensor<8xf32>
    return %n : tensor<8xf32>
  }
}
"""

COPY = "stablehlo.optimization_barrier %x"

MakeCache = Callable[..., CompileCache]


@pytest.fixture
def directory(own_directories: Path) -> Path:
    return own_directories / "compiled"


@pytest.fixture
def make_cache(directory: Path) -> Iterator[MakeCache]:
    """Opens caches in one directory, as so many proxies would; they end with the test."""
    made: list[CompileCache] = []

    def make(limit: int = 1 << 30, identity: bytes = MACHINE) -> CompileCache:
        made.append(CompileCache(directory, limit, identity))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.xla"))


def run_double(client: RawClient) -> bytes:
    (result,) = client.execute(client.compile(DOUBLE, [0]), [client.put(FOUR, single(0))])
    return client.fetch(result).tobytes()


def run_sharded(client: RawClient) -> bytes:
    program = client.compile(sharded_double(8), list(range(8)))
    (result,) = client.execute(program, [client.put(EIGHT, split(list(range(8))))])
    return client.fetch(result).tobytes()


def run_donating(client: RawClient) -> bytes:
    program = client.compile(sharded_double(4, ", jax.buffer_donor = true"), [0, 1, 2, 3])
    argument = client.put(EIGHT, split([0, 1, 2, 3]))
    (result,) = client.execute(program, [argument])
    data = client.fetch(result).tobytes()
    assert client.call("is_array_deleted", array_handle=argument).deleted
    return data


def run_lapack(client: RawClient) -> bytes:
    matrix = np.array([[2.0, 0.7], [0.7, 3.3]], np.float32)
    (result,) = client.execute(client.compile(CHOLESKY, [0]), [client.put(matrix, single(0))])
    return client.fetch(result).tobytes()


def run_without_arguments(client: RawClient) -> bytes:
    (result,) = client.execute(client.compile(COUNT, [0, 1, 2, 3]), [])
    return client.fetch(result).tobytes()


RUNS = [run_double, run_sharded, run_donating, run_lapack, run_without_arguments]


# ---- hits


@pytest.mark.parametrize("run", RUNS)
def test_the_second_session_and_the_second_proxy_load(
    run: Callable[[RawClient], bytes],
    make_proxy: MakeProxy,
    connect: MakeClient,
    make_cache: MakeCache,
) -> None:
    uncached = run(connect(make_proxy().address))
    caches = [make_cache(), make_cache()]
    proxies = [make_proxy(compile_cache=cache) for cache in caches]
    results = [run(connect(proxies[0].address)), run(connect(proxies[0].address))]
    results.append(run(connect(proxies[1].address)))
    assert results == [uncached] * 3
    assert caches[0].counts == CacheCounts(hits=1, misses=1, stored=1)
    assert caches[1].counts == CacheCounts(hits=1)
    assert [proxy.engine.compiler.compiled for proxy in proxies] == [1, 0]


def test_a_loaded_program_describes_itself_as_the_compiled_one(
    make_proxy: MakeProxy, connect: MakeClient, make_cache: MakeCache
) -> None:
    told = []
    for cache in (make_cache(), make_cache()):
        client = connect(make_proxy(compile_cache=cache).address)
        for program, devices in ((DOUBLE, [0]), (sharded_double(4), [0, 1, 2, 3])):
            handle = client.compile(program, devices)
            cost = client.call(
                "loaded_executable_cost_analysis", loaded_executable_handle=handle
            ).attributes
            told.append(
                (
                    client.call("loaded_executable_metadata", loaded_executable_handle=handle),
                    sorted((name, cost.attributes[name].float_value) for name in cost.attributes),
                    client.call(
                        "loaded_executable_human_readable_program_text",
                        loaded_executable_handle=handle,
                    ),
                )
            )
    assert cache.counts.hits == 2
    assert told[:2] == told[2:]


def test_slices_share_programs_and_devices_do_not(
    make_proxy: MakeProxy, connect: MakeClient, make_cache: MakeCache
) -> None:
    cache = make_cache()
    client = connect(make_proxy(compile_cache=cache).address)
    for devices in ([0], [4], [1]):
        program = client.compile(DOUBLE, devices)
        (result,) = client.execute(program, [client.put(FOUR, single(devices[0]))])
        np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
    assert cache.counts == CacheCounts(hits=1, misses=2, stored=2)


def test_where_a_program_was_written_does_not_matter(
    make_proxy: MakeProxy, connect: MakeClient, make_cache: MakeCache
) -> None:
    cache = make_cache()
    client = connect(make_proxy(compile_cache=cache).address)
    here = DOUBLE.replace("tensor<4xf32>\n    return", 'tensor<4xf32> loc("a.py":1:1)\n    return')
    there = here.replace('"a.py":1', '"b.py":99')
    assert here != DOUBLE
    for program in (DOUBLE, here, there):
        client.compile(program, [0])
    assert cache.counts == CacheCounts(hits=2, misses=1, stored=1)


def test_a_program_without_any_code_of_its_own_is_kept(
    make_proxy: MakeProxy, connect: MakeClient, make_cache: MakeCache
) -> None:
    cache = make_cache()
    client = connect(make_proxy(compile_cache=cache).address)
    for _ in range(2):
        program = client.compile(DOUBLE.replace("stablehlo.add %x, %x", COPY), [0])
        (result,) = client.execute(program, [client.put(FOUR, single(0))])
        np.testing.assert_array_equal(client.fetch(result), FOUR)
    assert cache.counts == CacheCounts(hits=1, misses=1, stored=1)


def test_two_processes(
    start_proxy: StartProxy, connect: MakeClient, directory: Path, own_directories: Path
) -> None:
    flags = [f"--compile_cache_dir={directory}"]
    proxies = [start_proxy(*flags), start_proxy(*flags)]
    results = [run_double(connect(address_of(proxy))) for proxy in proxies]
    assert results == [(2 * FOUR).tobytes()] * 2
    assert len(entries(directory)) == 1
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    for proxy in proxies:
        assert proxy.stop() == 0
    # What said that they may be loading is gone with them.
    assert list(directory.iterdir()) == entries(directory)


# ---- what is not kept, and what is another program


def test_programs_that_could_not_be_loaded_are_not_kept(
    make_proxy: MakeProxy,
    connect: MakeClient,
    make_cache: MakeCache,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # XLA's loader ends the process with a program of a thousand object files.
    monkeypatch.setattr(xla_executables, "_LOADABLE_OBJECTS", 0)
    cache = make_cache()
    client = connect(make_proxy(compile_cache=cache).address)
    for _ in range(2):
        assert run_double(client) == (2 * FOUR).tobytes()
    assert cache.counts == CacheCounts(misses=2)
    assert entries(directory) == []


def test_programs_without_a_serialised_form_are_compiled(
    make_proxy: MakeProxy,
    connect: MakeClient,
    make_cache: MakeCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_executable: object) -> bytes:
        raise RuntimeError("UNIMPLEMENTED: not this one")

    monkeypatch.setattr(xla_executables, "serialized", refuse)
    cache = make_cache()
    assert run_double(connect(make_proxy(compile_cache=cache).address)) == (2 * FOUR).tobytes()
    assert cache.counts == CacheCounts(misses=1)


def test_what_makes_another_program(
    make_proxy: MakeProxy,
    connect: MakeClient,
    make_cache: MakeCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compile_with(cache: CompileCache, **arguments: object) -> None:
        proxy = make_proxy(compile_cache=cache, **arguments)
        connect(proxy.address).compile(DOUBLE, [0])

    compile_with(make_cache())
    compile_with(another := make_cache(identity=b"other features"))
    assert another.counts.misses == 1
    compile_with(another := make_cache(), xla_flags=[("xla_cpu_enable_fast_math", "true")])
    assert another.counts.misses == 1
    with monkeypatch.context() as patch:
        patch.setattr(jaxlib.version, "__version__", "0.0.1")
        compile_with(another := make_cache())
        assert another.counts.misses == 1
    compile_with(same := make_cache())
    assert same.counts == CacheCounts(hits=1)


def test_who_asks_for_dumps_sees_xla_compile(
    make_proxy: MakeProxy, connect: MakeClient, make_cache: MakeCache, own_directories: Path
) -> None:
    flags = [("xla_dump_to", str(own_directories / "dumps"))]
    cache = make_cache()
    for _ in range(2):
        proxy = make_proxy(compile_cache=cache, xla_flags=flags)
        connect(proxy.address).compile(DOUBLE, [0])
        assert proxy.engine.compiler.compiled == 1
    assert cache.counts == CacheCounts()


# ---- the machine

ONE_CPU = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512f\ncpu MHz\t: {mhz}\n"


def test_features_of_the_cpu_are_part_of_the_key_and_its_speed_is_not() -> None:
    first = machine_identity(lambda: ONE_CPU.format(mhz=1000))
    assert first == machine_identity(lambda: ONE_CPU.format(mhz=2000))
    assert first != machine_identity(lambda: ONE_CPU.format(mhz=1000).replace(" avx512f", ""))
    # Cores that differ, as some ARM machines have them.
    assert first != machine_identity(
        lambda: ONE_CPU.format(mhz=1) + ONE_CPU.format(mhz=1).replace("A CPU", "B")
    )


def test_without_knowledge_of_the_cpu_there_is_no_identity() -> None:
    def missing() -> str:
        raise FileNotFoundError("/proc/cpuinfo")

    assert machine_identity(missing) is None
    assert machine_identity(lambda: "bogus: 1\n") is None
    assert machine_identity() is not None


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


def test_a_program_that_ended_the_process_which_loaded_it_is_not_tried_again(
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


def test_a_directory_that_is_not_ones_own_is_refused(
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


def test_a_proxy_does_without_a_directory_that_it_refuses(
    start_proxy: StartProxy, connect: MakeClient, directory: Path
) -> None:
    directory.mkdir(mode=0o755)
    proxy = start_proxy(f"--compile_cache_dir={directory}")
    proxy.wait_for_line("Compiled programs are not cached: .* can be accessed by other users")
    assert run_double(connect(address_of(proxy))) == (2 * FOUR).tobytes()
    assert list(directory.iterdir()) == []
    assert proxy.stop() == 0


def test_what_was_used_least_recently_goes_first(make_cache: MakeCache, directory: Path) -> None:
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
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(compile_cache, "glog", lambda _level, text: logged.append(text))
    cache = make_cache()

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        client = connect(make_proxy(compile_cache=cache).address)
        assert [run_double(client), run_double(client)] == [(2 * FOUR).tobytes()] * 2
    assert cache.counts == CacheCounts(misses=2)
    assert len(logged) == 1
    assert "No space left on device" in logged[0]
    assert not [path for path in directory.iterdir() if path.name.startswith("draft-")]


def test_a_full_disk_does_not_keep_cached_programs_from_being_compiled(
    make_proxy: MakeProxy,
    connect: MakeClient,
    make_cache: MakeCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(compile_cache, "glog", lambda _level, text: logged.append(text))
    cache = make_cache()
    client = connect(make_proxy(compile_cache=cache).address)
    run_double(client)

    def full(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert [run_double(client), run_double(client)] == [(2 * FOUR).tobytes()] * 2
    assert cache.counts.hits == 0
    assert len(logged) == 1
    assert "No space left on device" in logged[0]
    assert run_double(client) == (2 * FOUR).tobytes()
    assert cache.counts.hits == 1


def test_who_empties_the_cache_directory_does_no_harm(
    make_cache: MakeCache, directory: Path
) -> None:
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
