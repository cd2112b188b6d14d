"""The devices of a host, by platform; accelerators are stand-ins."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from harness.processes import ServerProcess
from harness.proxy.accelerators import StandInCuda, StandInTpu
from harness.proxy.executors import running_executors
from harness.proxy.programs import DOUBLE, sharded_sum
from harness.proxy.raw import Failed, RawClient, single, split
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.flags import ExecutorOptions
from shared_pathways_service.servers.xla.coordination import Seat
from shared_pathways_service.servers.xla.host_platforms import (
    CpuHost,
    CudaHost,
    HostPlatform,
    TpuHost,
    host_platform,
)
from shared_pathways_service.servers.xla.plugins import CudaPlugin, TpuPlugin
from shared_pathways_service.servers.xla.xla import XlaClient

FOUR = InstanceType.parse("tpuv6e:2x2")
PAIR = InstanceType.parse("tpuv6e:2x4")
PLATFORMS: dict[str, Callable[[], HostPlatform]] = {
    "cpu": CpuHost,
    "cuda": lambda: CudaHost(4, 0, StandInCuda(4)),
    "tpu": lambda: TpuHost(FOUR, StandInTpu(4)),
}


@pytest.fixture(params=PLATFORMS)
def host(request: pytest.FixtureRequest) -> HostPlatform:
    platform = PLATFORMS[request.param]()
    assert platform.name == request.param
    return platform


def test_a_host_alone_has_its_devices_each_time(host: HostPlatform) -> None:
    for _ in range(2):
        client = XlaClient((4, 5, 6, 7), host.alone())
        assert client.platform == host.name
        assert client.memory_kinds[:2] == ("device", "pinned_host")


def test_a_client_has_as_many_devices_as_are_asked_for(host: HostPlatform) -> None:
    if isinstance(host, CpuHost):
        assert len(host.alone().devices(range(3))[1]) == 3
        return
    with pytest.raises(StatusError, match="has 4 devices, not 3"):
        host.alone().devices(range(3))


def test_gpus_are_those_from_the_first_one_on() -> None:
    plugin = StandInCuda(8)
    CudaHost(4, 4, plugin).alone().devices(range(4))
    assert plugin.made == [{"visible_devices": [4, 5, 6, 7], "preallocate": False}]


@pytest.mark.parametrize(
    ("make", "value", "expected"),
    [
        (lambda: CudaHost(4, 0, StandInCuda(2)), "4 chips per host", "at most 2 with --platform=c"),
        (lambda: CudaHost(4, 4, StandInCuda(6)), "4 chips per host from 4 on", "at most 2"),
        (lambda: CudaHost(1, 3, StandInCuda(1)), "1 chips per host from 3 on", "at most 0"),
        (lambda: TpuHost(FOUR, StandInTpu(0)), "4 chips per host", "libtpu uses on this host (0)"),
        # (Of GPUs, some can be used; libtpu has all TPUs in its one client.)
        (lambda: TpuHost(FOUR, StandInTpu(8)), "4 chips per host", "libtpu uses on this host (8)"),
    ],
)
def test_too_few_or_too_many_devices(
    make: Callable[[], HostPlatform], value: str, expected: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        make()
    assert (raised.value.field, raised.value.value) == ("--instance_type", value)
    assert expected in raised.value.expected


def test_without_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        CudaPlugin(list).count()
    assert (raised.value.field, raised.value.value) == ("--platform", "cuda")
    assert "jax[cuda12]" in raised.value.hint
    monkeypatch.setattr(
        "shared_pathways_service.servers.xla.xla_internals.tpu_library", lambda: None
    )
    with pytest.raises(InvalidRequestError) as raised:
        host_platform("tpu", FOUR, 4)
    assert (raised.value.field, raised.value.value) == ("--platform", "tpu")
    assert "jax[tpu]" in raised.value.hint


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 8),
        ({"TPU_VISIBLE_CHIPS": ""}, 8),
        ({"TPU_VISIBLE_CHIPS": "0,1,2,3"}, 4),
        ({"TPU_VISIBLE_DEVICES": "5"}, 1),
        ({"TPU_VISIBLE_CHIPS": "0,1", "TPU_VISIBLE_DEVICES": "5"}, 2),
    ],
)
def test_tpus_are_those_that_libtpu_uses(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], count: int
) -> None:
    internals = "shared_pathways_service.servers.xla.xla_internals"
    monkeypatch.setattr(f"{internals}.tpu_library", lambda: "/libtpu.so")
    monkeypatch.setattr(f"{internals}.tpus_on_host", lambda: 8)
    assert TpuPlugin(environ).count() == count


def test_a_driver_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = CudaPlugin(lambda: [types.SimpleNamespace(name="xla_cuda13")])
    no_device = types.SimpleNamespace(cuInit=lambda _flags: 100)

    def missing(_name: str) -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    for load, why in ((lambda _name: no_device, "CUDA error 100"), (missing, "libcuda.so.1")):
        monkeypatch.setattr("ctypes.CDLL", load)
        with pytest.raises(InvalidRequestError) as raised:
            plugin.count()
        assert (raised.value.field, raised.value.value) == ("--platform", "cuda")
        assert why in raised.value.expected
        assert "NVIDIA's driver (libcuda.so.1)" in raised.value.hint


def test_the_plug_ins_options_are_jaxs_and_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    loaded = types.SimpleNamespace(initialize=lambda: made.append("initialized"))
    entry = types.SimpleNamespace(name="xla_cuda13", load=lambda: loaded)
    jaxlib = "jaxlib.xla_client"
    monkeypatch.setattr(f"{jaxlib}.pjrt_plugin_initialized", lambda _name: True)
    monkeypatch.setattr(f"{jaxlib}.make_c_api_client", lambda *given: given)
    monkeypatch.setattr(
        "jaxlib.gpu_solver.initialize_hybrid_kernels", lambda: made.append("LAPACK loaded")
    )
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    own = {"preallocate": False, "visible_devices": [1], "node_id": 1, "num_nodes": 2}
    name, options, coordination = CudaPlugin(lambda: [entry]).make_client(own, "coordination")
    assert (made, name, coordination) == (
        ["initialized", "LAPACK loaded"],
        "cuda",
        "coordination",
    )
    assert options["platform_name"] == "cuda"
    assert {key: options[key] for key in own} == own


def test_libtpu_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    jaxlib = "jaxlib.xla_client"
    monkeypatch.setattr(
        "shared_pathways_service.servers.xla.xla_internals.tpu_library", lambda: "/libtpu.so"
    )
    monkeypatch.setattr(f"{jaxlib}.pjrt_plugin_loaded", lambda _name: bool(done))
    monkeypatch.setattr(f"{jaxlib}.pjrt_plugin_initialized", lambda _name: len(done) > 1)
    for name in ("load_pjrt_plugin_dynamically", "initialize_pjrt_plugin", "make_c_api_client"):
        monkeypatch.setattr(f"{jaxlib}.{name}", lambda *given: done.append(given))
    plugin = TpuPlugin()
    plugin.make_client({}, None)
    plugin.make_client({}, None)
    assert done == [("tpu", "/libtpu.so"), ("tpu",), ("tpu", {}, None), ("tpu", {}, None)]


def test_tpus_of_several_slices_are_refused() -> None:
    seat = Seat(coordinator="a:1", node=0, nodes=4, own=4, devices=16, host="a")
    with pytest.raises(StatusError, match="more slices than one tpuv6e:2x4") as raised:
        TpuHost(PAIR, StandInTpu(4)).of_several(seat)
    assert raised.value.code == Code.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--platform=rocm"], "--platform"),
        (["--first_device=1"], "--first_device"),
        (["--platform=tpu", "--devices=1"], "--devices"),
    ],
)
def test_flags_that_do_not_fit(flags: list[str], field: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_flags(ExecutorOptions, ["--instance_type=tpuv6e:2x2", *flags], {})
    assert raised.value.field == field


def why_no_gpus() -> str:
    try:
        host_platform("cuda", FOUR, 4)
    except InvalidRequestError as error:
        return error.expected
    return ""


def test_an_executor_says_why_it_does_not_start() -> None:
    why = why_no_gpus()
    if not why:
        pytest.skip("there are four GPUs")
    flags = ["--instance_type=tpuv6e:2x2", "--platform=cuda"]
    with ServerProcess("shared_pathways_service.servers.executor", flags) as executor:
        assert executor.wait() == 2
    assert any(why in line for line in executor.lines)


@contextlib.contextmanager
def proxy_for(platform: str, kind: InstanceType, slices: int = 1) -> Iterator[RawClient]:
    """Runs a proxy on executors with stand-ins."""
    each = [
        [f"--instance_type={kind}", f"--host_index={host}"]
        for _ in range(slices)
        for host in range(kind.hosts)
    ]
    with running_executors(*each, platform=platform) as running:
        flags = [f"--virtual_slices={','.join([str(kind)] * slices)}", f"--platform={platform}"]
        flags += [*running.proxys_flags, "--server_port=0"]
        with ServerProcess("shared_pathways_service.servers.proxy", flags) as proxy:
            assert proxy.ready is not None, proxy.lines
            with RawClient(f"127.0.0.1:{proxy.ready['port']}") as client:
                yield client
            proxy.stop()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_proxy_computes_on_a_slice_of_two_hosts(platform: str) -> None:
    with proxy_for(platform, PAIR) as client:
        found = client.call("init")
        assert found.platform_name == platform
        assert {memory.memory_space_kind for memory in found.memories} == {"device", "pinned_host"}
        array = client.put(np.arange(8, dtype=np.float32), split(range(8)))
        (summed,) = client.execute(client.compile(sharded_sum(8), range(8)), [array])
        assert client.fetch(summed).tolist() == [28.0 + number for number in range(8)]
        one = client.put(np.arange(4, dtype=np.float32), single(5))
        (doubled,) = client.execute(client.compile(DOUBLE, [5]), [one])
        assert client.fetch(doubled).tolist() == [0, 2, 4, 6]


def test_a_program_over_two_slices_of_tpus_is_refused() -> None:
    with proxy_for("tpu", FOUR, slices=2) as client:
        with pytest.raises(Failed, match="libtpu makes one client per process") as raised:
            client.compile(sharded_sum(8), range(8))
        assert raised.value.code == Code.UNIMPLEMENTED
        # Each slice computes all the same, and arrays go from one to the other.
        for first in (0, 4):
            devices = range(first, first + 4)
            array = client.put(np.arange(8, dtype=np.float32), split(devices))
            (summed,) = client.execute(client.compile(sharded_sum(4), devices), [array])
            assert client.fetch(summed).tolist() == [28.0 + number for number in range(8)]
