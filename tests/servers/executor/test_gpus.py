"""Two executors with a GPU each, where there are two."""

from __future__ import annotations

import numpy as np
import pytest

from harness.processes import ServerProcess
from harness.proxy.executors import running_executors
from harness.proxy.programs import DOUBLE, sharded_sum
from harness.proxy.raw import RawClient, single, split
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.xla.plugins import CudaPlugin


def test_a_program_over_two_slices_of_one_gpu() -> None:
    try:
        gpus = CudaPlugin().count()
    except InvalidRequestError as error:
        pytest.skip(f"no GPU was tested: {error}")
    if gpus < 2:
        pytest.skip(f"no program over two GPUs was tested: there are {gpus}")
    each = [["--instance_type=tpuv6e:1x1", f"--first_device={gpu}"] for gpu in range(2)]
    with running_executors(*each, platform="cuda", stand_ins=False) as running:
        flags = ["--virtual_slices=tpuv6e:1x1,tpuv6e:1x1", "--platform=cuda", "--server_port=0"]
        with ServerProcess(
            "shared_pathways_service.servers.proxy", [*flags, *running.proxys_flags]
        ) as proxy:
            assert proxy.ready is not None, proxy.lines
            with RawClient(f"127.0.0.1:{proxy.ready['port']}") as client:
                one = client.put(np.arange(4, dtype=np.float32), single(1))
                (doubled,) = client.execute(client.compile(DOUBLE, [1]), [one])
                assert client.fetch(doubled).tolist() == [0, 2, 4, 6]
                array = client.put(np.arange(8, dtype=np.float32), split((0, 1)))
                (summed,) = client.execute(client.compile(sharded_sum(2), (0, 1)), [array])
                assert client.fetch(summed).tolist() == [28.0 + number for number in range(8)]
            proxy.stop()
