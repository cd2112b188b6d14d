"""Programs on GPUs, on machines that have them."""

from __future__ import annotations

import numpy as np
import pytest

from harness.processes import ServerProcess
from harness.proxy.executors import running_executors
from harness.proxy.programs import DOUBLE, sharded_sum
from harness.proxy.raw import RawClient, single, split
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.xla.plugins import CudaPlugin

_PROXY = "shared_pathways_service.servers.proxy"


def test_a_program_on_a_gpu_of_the_proxy() -> None:
    _require_gpus(1)
    with ServerProcess(
        _PROXY, ["--virtual_slices=tpuv6e:1x1", "--platform=cuda", "--server_port=0"]
    ) as proxy:
        _double_on(proxy, device=0)
        proxy.stop()


def test_a_program_on_an_executor_with_a_gpu() -> None:
    _require_gpus(1)
    flags = ["--instance_type=tpuv6e:1x1", "--first_device=0"]
    with running_executors(flags, platform="cuda", stand_ins=False) as running:
        proxys = ["--virtual_slices=tpuv6e:1x1", "--platform=cuda", "--server_port=0"]
        with ServerProcess(_PROXY, [*proxys, *running.proxys_flags]) as proxy:
            _double_on(proxy, device=0)
            proxy.stop()


def test_a_program_over_two_slices_of_one_gpu() -> None:
    _require_gpus(2)
    each = [["--instance_type=tpuv6e:1x1", f"--first_device={gpu}"] for gpu in range(2)]
    with running_executors(*each, platform="cuda", stand_ins=False) as running:
        flags = ["--virtual_slices=tpuv6e:1x1,tpuv6e:1x1", "--platform=cuda", "--server_port=0"]
        with ServerProcess(_PROXY, [*flags, *running.proxys_flags]) as proxy:
            _double_on(proxy, device=1)
            with RawClient(f"127.0.0.1:{_port(proxy)}") as client:
                array = client.put(np.arange(8, dtype=np.float32), split((0, 1)))
                (summed,) = client.execute(client.compile(sharded_sum(2), (0, 1)), [array])
                assert client.fetch(summed).tolist() == [28.0 + number for number in range(8)]
            proxy.stop()


def _require_gpus(wanted: int) -> None:
    """Skips the test on a machine with fewer GPUs."""
    try:
        found = CudaPlugin().count()
    except InvalidRequestError as error:
        pytest.skip(f"no GPU was tested: {error}")
    if found < wanted:
        pytest.skip(f"no program over {wanted} GPUs was tested: there are {found}")


def _double_on(proxy: ServerProcess, *, device: int) -> None:
    with RawClient(f"127.0.0.1:{_port(proxy)}") as client:
        array = client.put(np.arange(4, dtype=np.float32), single(device))
        (doubled,) = client.execute(client.compile(DOUBLE, [device]), [array])
        assert client.fetch(doubled).tolist() == [0, 2, 4, 6]


def _port(proxy: ServerProcess) -> int:
    assert proxy.ready is not None, proxy.lines
    return int(proxy.ready["port"])
