"""Each version of the protocol, forced: JAX's own client does on it all that one can do."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.processes import DEADLINE_S, REPOSITORY
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import F32, single
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.servers.proxy.engine.engine import Engine
from shared_pathways_service.servers.proxy.session.service import ProxyService
from shared_pathways_service.servers.proxy.transport.grpc_transport import GrpcTransport
from tests.servers.proxy.conftest import KIND, MakeClient, MakeProxy

VERSIONS = range(ifrt.PROTOCOL_MIN, ifrt.PROTOCOL_MAX + 1)
#: Bytes that a device may hold.
LIMIT = 16 << 20
#: From which version on there is what: large buffers through a shared directory, requests for cost
#: analysis, program text and an execution's status, and results' types told only once.
LARGE_FILES, COST, TEXT, STATUS, RESULTS_ONCE = 17, 18, 19, 21, 25


class Watched(ProxyService):
    """Counts the buffers that come through the shared directory."""

    from_files = 0

    def read_from_disk(self, raw: bytes) -> bytes:
        self.from_files += 1
        return super().read_from_disk(raw)


class Versions:
    """One engine behind a service for each version, and a JAX process on all of them."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        (root / "large" / "mine").mkdir(parents=True)
        engine = Engine([InstanceType.parse(KIND)] * 2, LIMIT)
        stack.callback(engine.close)
        for index in range(2):
            engine.slices.place(index, 1, f"slice-{index}")
        self.services: dict[int, Watched] = {}
        addresses = []
        for version in VERSIONS:
            service = self.services[version] = Watched(
                engine, large_transfer_dir=root / "large", newest_version=version
            )
            transport = GrpcTransport(service)
            stack.callback(transport.stop)
            listening = transport.start(
                server_port=None,
                server_socket=str(root / str(version)),
                default_port=0,
                bind_address="",
            )
            addresses.append(f"{version}={listening.address}")
        settings = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION"
        self._child = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.servers.proxy.protocol_child", *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    f"{settings}_DIRECTORY": str(root / "large" / "mine"),
                    f"{settings}_THRESHOLD_BYTES": "65536",
                },
            )
        )

    def run(self, version: int) -> dict[str, Any]:
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{version}\n")
        child.stdin.flush()
        assert select.select([child.stdout], [], [], 2 * DEADLINE_S)[0], f"{version} hangs"
        seen: dict[str, Any] = json.loads(child.stdout.readline())
        assert "failure" not in seen, seen["failure"]
        return seen

    def end(self) -> int:
        assert self._child.stdin is not None
        self._child.stdin.close()
        return self._child.wait(DEADLINE_S)


def test_jax_on_each_version() -> None:
    root = Path(tempfile.mkdtemp(prefix="sps"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        versions = Versions(root, stack)
        for version in VERSIONS:
            _check(version, versions.run(version), versions.services[version])
        assert versions.end() == 0


def _check(version: int, seen: dict[str, Any], service: Watched) -> None:
    deleted, told = seen.pop("deleted")
    assert deleted is True
    assert "deleted" in told
    for told in (*seen.pop("poison"), seen.pop("failed token")):
        assert told.startswith("RESOURCE_EXHAUSTED: ")
        assert f"whose limit (--device_memory_limit_bytes) is {LIMIT} bytes" in told
    values = list(range(16))
    assert {"version": version, **seen} == {
        "version": version,
        "platform": "cpu",
        "devices": 8,
        "round trip": values,
        "executed": [30] * 3,
        "resharded": values,
        "halves": [[0, 4], [8, 4]],
        "whole": 30,
        "large": True,
        "layout": values[:4],
        "cost": 2.0 if version >= COST else None,
        "text": "HloModule" if version >= TEXT else None,
    }
    (session,) = service.sessions
    asked = {kind.removesuffix("_request") for kind, _ in session.counts.items()}
    assert {
        "version": session.version,
        "cost": "loaded_executable_cost_analysis" in asked,
        "text": "loaded_executable_human_readable_program_text" in asked,
        "status": "loaded_executable_fetch_execute_result" in asked,
        "files": service.from_files > 0,
    } == {
        "version": version,
        "cost": version >= COST,
        "text": version >= TEXT,
        "status": version >= STATUS,
        "files": version >= LARGE_FILES,
    }
    assert {"reshard_arrays", "remap_arrays", "check_future"} <= asked
    # Both failed and good ones were asked after, in whatever way.
    assert not session.executions


@pytest.mark.parametrize("version", VERSIONS)
def test_result_types_are_repeated_on_request(
    make_proxy: MakeProxy, connect: MakeClient, version: int
) -> None:
    client = connect(make_proxy(newest_version=version).address, version=version)
    array = client.put(np.arange(4, dtype=np.float32), single(0))
    program = client.compile(DOUBLE, [0])
    told = [
        [
            (output.dtype.kind, list(output.shape.dims), output.array_handle)
            for output in client.call(
                "loaded_executable_execute",
                loaded_executable_handle=program,
                args_handles=[array],
                result_array_handle=[handle],
            ).outputs
        ]
        for handle in (700, 701)
    ]
    again = [] if version >= RESULTS_ONCE else [(F32, [4], 701)]
    assert told == [[(F32, [4], 700)], again]
