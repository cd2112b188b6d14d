"""Programs compiled once: another session or another proxy loads them, never wrongly."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import jaxlib.version
import numpy as np
import pytest

from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import RawClient, single
from shared_pathways_service.servers.proxy.engine.compile_cache import CacheCounts, CompileCache
from shared_pathways_service.servers.xla import xla_executables
from shared_pathways_service.servers.xla.host_machine import machine_identity
from tests.servers.proxy.conftest import MakeClient, MakeProxy, StartProxy
from tests.servers.proxy.engine.cached_programs import (
    FOUR,
    RUNS,
    MakeCache,
    entries,
    run_double,
)
from tests.servers.proxy.processes import address_of

COPY = "stablehlo.optimization_barrier %x"


# ---- hits


@pytest.mark.parametrize("run", RUNS)
def test_a_second_session_and_a_second_proxy_load_the_program(
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


def test_a_loaded_program_has_the_description_of_the_compiled_one(
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


def test_a_program_without_code_is_cached(
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


def test_unloadable_programs_are_not_cached(
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

    monkeypatch.setattr(xla_executables.XlaExecutable, "serialized", refuse)
    cache = make_cache()
    assert run_double(connect(make_proxy(compile_cache=cache).address)) == (2 * FOUR).tobytes()
    assert cache.counts == CacheCounts(misses=1)


def test_the_key_depends_on_each_input(
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


def test_a_request_for_dumps_compiles_anew(
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


def test_an_unknown_cpu_has_no_identity() -> None:
    def missing() -> str:
        raise FileNotFoundError("/proc/cpuinfo")

    assert machine_identity(missing) is None
    assert machine_identity(lambda: "bogus: 1\n") is None
    assert machine_identity() is not None
