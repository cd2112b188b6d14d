"""The platform of a proxy: what is said where CUDA cannot be had, and one run where it can."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.processes import ServerProcess
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import RawClient, single
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.xla.platforms import CPU, Cuda, make_platform
from shared_pathways_service.servers.xla.shardings import Placings
from tests.servers.proxy.conftest import KIND

MODULE = "shared_pathways_service.servers.proxy"


def plugin(initialize: Callable[[], None] = lambda: None) -> list[Any]:
    """An environment with a plug-in."""
    module = types.SimpleNamespace(initialize=initialize)
    return [types.SimpleNamespace(name="xla_cuda12", load=lambda: module)]


def machine(gpus: int) -> Any:
    """A client of so many GPUs."""
    devices = [types.SimpleNamespace(id=number) for number in reversed(range(gpus))]
    return types.SimpleNamespace(local_devices=lambda: devices)


def test_an_unknown_platform() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_flags(ProxyServerOptions, [f"--virtual_slices={KIND}", "--platform=rocm"], {})
    assert (raised.value.field, raised.value.value) == ("--platform", "rocm")
    assert raised.value.expected == "one of cpu, cuda, tpu"
    assert make_platform("cpu", 4) is CPU


def test_without_the_plug_in() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Cuda(1, lambda: [types.SimpleNamespace(name="sps_proxy")])
    assert (raised.value.field, raised.value.value) == ("--platform", "cuda")
    assert "plug-in is not installed" in raised.value.expected
    assert "jax[cuda12]" in raised.value.hint


def test_without_a_gpu() -> None:
    def no_cuda() -> None:
        raise RuntimeError("Unable to load CUDA. Is it installed?\nmore")

    def no_device() -> None:
        raise RuntimeError("FAILED_PRECONDITION: No visible GPU devices.")

    for plugins, make_client, said in (
        (plugin(no_cuda), lambda: machine(8), "Unable to load CUDA. Is it installed?)"),
        (plugin(), no_device, "No visible GPU devices.)"),
    ):
        with pytest.raises(InvalidRequestError) as raised:
            Cuda(1, lambda plugins=plugins: plugins, make_client)  # type: ignore[misc]
        assert (raised.value.field, raised.value.value) == ("--platform", "cuda")
        assert raised.value.expected.endswith(said)
        assert "NVIDIA's driver" in raised.value.hint


def test_lapack_is_loaded_for_the_plug_ins_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        "jaxlib.gpu_solver.initialize_hybrid_kernels", lambda: made.append("LAPACK loaded")
    )
    Cuda(1, lambda: plugin(lambda: made.append("initialized")), lambda: machine(1))
    assert made == ["initialized", "LAPACK loaded"]


def test_fewer_gpus_than_the_slices_have_chips() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Cuda(8, plugin, lambda: machine(4))
    assert (raised.value.field, raised.value.value) == ("--virtual_slices", "8 chips")
    assert "at most 4 chips" in raised.value.expected
    client, gpus = Cuda(4, plugin, lambda: machine(4)).devices([1, 3])
    assert [gpu.id for gpu in gpus] == [1, 3]
    assert len(client.local_devices()) == 4


def test_memory_kinds_are_asked_for() -> None:
    assert Placings([0, 0]).memory_kinds == ("device", "pinned_host", "unpinned_host")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a policy")
def test_xlas_threads_let_those_that_answer_go_on() -> None:
    def threads() -> set[int]:
        return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}

    mine = os.sched_getscheduler(0)
    before = threads()
    client, devices = CPU.devices(range(8))
    begun = threads() - before
    assert len(devices) == 8
    assert len(begun) >= 8
    assert {os.sched_getscheduler(thread) for thread in begun} == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == mine
    del client, devices


def test_a_machine_that_forbids_a_policy_computes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "sched_setscheduler", forbid, raising=False)
    _, devices = CPU.devices((3,))
    assert len(devices) == 1


def test_a_proxy_says_why_it_does_not_start() -> None:
    if any(p.name.startswith("xla_cuda") for p in _plugins()):
        pytest.skip("the CUDA plug-in is installed here")
    flags = [f"--virtual_slices={KIND}", "--platform=cuda", "--server_port=0"]
    with ServerProcess(MODULE, flags) as proxy:
        assert proxy.wait() == 2
    assert any("--platform='cuda' is not valid: expected cpu, as" in s for s in proxy.lines)


def _plugins() -> Any:
    return importlib.metadata.entry_points(group="jax_plugins")


def _why_no_gpu() -> str:
    try:
        Cuda(1)
    except InvalidRequestError as error:
        return f"no GPU was tested: {error}"
    return ""


def test_one_gpu_computes() -> None:
    if why := _why_no_gpu():
        pytest.skip(why)
    flags = ["--virtual_slices=tpuv6e:1x1", "--platform=cuda", "--server_port=0"]
    with ServerProcess(MODULE, flags) as proxy:
        assert proxy.ready is not None
        with RawClient(f"127.0.0.1:{proxy.ready['port']}") as client:
            array = client.put(np.arange(4, dtype=np.float32), single(0))
            (doubled,) = client.execute(client.compile(DOUBLE, [0]), [array])
            assert client.fetch(doubled).tolist() == [0, 2, 4, 6]
        proxy.stop()
