"""A proxy whose devices are in executors, one of which is killed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.processes import ServerProcess
from harness.proxy.programs import DOUBLE, sharded_double, sharded_endless
from harness.proxy.raw import Failed, single, split
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.executor.flags import ExecutorOptions
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from tests.servers.proxy.conftest import MakeClient, StartProxy
from tests.servers.proxy.processes import DATA_LOSS, EIGHT, FOUR, address_of

EXECUTOR = "shared_pathways_service.servers.executor"
#: The first slice has two hosts, the second one has one.
SLICES = ("tpuv6e:2x4", "tpuv6e:2x2")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"engine": "local"}, "--executors"),
        ({"executors": ("a:1",)}, "--executors"),
        ({"executors": ("a:1", "b:2", "c")}, "--executors"),
        ({"resource_manager_address": "a:1"}, "--resource_manager_address"),
        ({"platform": "cuda"}, "--platform"),
        ({"ffi_targets": ("a=b:c",)}, "--ffi_targets"),
        ({"compile_cache_dir": "/somewhere"}, "--compile_cache_dir"),
    ],
)
def test_flags_that_do_not_fit_are_refused(fields: dict[str, Any], field: str) -> None:
    fitting: dict[str, Any] = {
        "virtual_slices": SLICES,
        "engine": "distributed",
        "executors": ("a:1", "b:2", "c:3"),
    }
    ProxyServerOptions(**fitting)
    with pytest.raises(InvalidRequestError) as raised:
        ProxyServerOptions(**{**fitting, **fields})
    assert raised.value.field == field


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_an_executor_has_one_address(address: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        ExecutorOptions(instance_type=SLICES[0], bind_address=address)
    assert raised.value.field == "--bind_address"


def test_a_killed_executor_takes_its_slice_and_no_other(
    start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("a-token")
    token_file.chmod(0o600)
    with contextlib.ExitStack() as stack:
        executors = [
            stack.enter_context(
                ServerProcess(
                    EXECUTOR,
                    [
                        f"--instance_type={instance_type}",
                        f"--host_index={host}",
                        f"--token_file={token_file}",
                    ],
                )
            )
            for instance_type, host in ((SLICES[0], 0), (SLICES[0], 1), (SLICES[1], 0))
        ]
        addresses = ",".join(f"127.0.0.1:{(e.ready or {})['port']}" for e in executors)
        proxy = start_proxy(
            "--engine=distributed",
            f"--executors={addresses}",
            f"--executor_token_file={token_file}",
            slices=",".join(SLICES),
        )
        client = connect(address_of(proxy))
        # Over the hosts of one slice, and over both slices.
        for devices in ((3, 4), (7, 8)):
            program = client.compile(sharded_double(2), devices)
            (result,) = client.execute(program, [client.put(EIGHT, split(devices))])
            np.testing.assert_array_equal(client.fetch(result), 2 * EIGHT)
        kept, lost = client.put(FOUR, single(8)), client.put(FOUR, single(0))
        endless = client.compile(sharded_endless(2), (7, 8))
        (running,) = client.execute(endless, [client.put(FOUR, split((7, 8)))])
        executors[1].kill()
        for array in (running, lost):
            with pytest.raises(Failed, match="virtual slice 0") as raised:
                client.fetch(array)
            assert raised.value.code == DATA_LOSS
        # The program that spans both still computes on the other slice's host.
        double = client.compile(DOUBLE, (8,))
        (result,) = client.execute(double, [kept])
        np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
        np.testing.assert_array_equal(client.fetch(kept), FOUR)
        # Executors end with their proxy, by the end of the stream or by jaxlib, which aborts.
        proxy.kill()
        executors[0].wait()
        executors[2].wait()
