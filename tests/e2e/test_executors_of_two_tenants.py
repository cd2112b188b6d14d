"""Two tenants on four slices: neither gets into the other's executors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from harness.embedded import embedded
from harness.processes import DEADLINE_S
from harness.programs import program, status
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol import executors_pb2_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.settings import Settings

#: Computes on both of its slices, and once more when it is told to.
TENANT = """
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    chips = NamedSharding(Mesh(np.array(jax.devices()), ("chip",)), P("chip"))
    total = jax.jit(lambda x: (x * 2).sum())
    x = jax.device_put(np.arange(64.0, dtype=np.float32), chips)
    say("computed", name=connection.proxy_job_name, total=float(total(x)))
    wait_for("again")
    say("computed", total=float(total(x)))
    del x
"""
TOTAL = float(sum(range(64)) * 2)


def test_another_tenants_executors_refuse_everyone() -> None:
    with (
        embedded(4, 0, "--engine=distributed"),
        program(TENANT) as victim,
        program(TENANT) as other,
    ):
        names = [one.expect("computed")["name"] for one in (victim, other)]
        executors = status()["executors"]
        of_each = [[one for one in executors if one["tenant"] == name] for name in names]
        assert [len(theirs) for theirs in of_each] == [2, 2]
        assert len({one["slice"] for one in executors}) == 4
        for executor in of_each[0]:
            check_refusals(executor["address"])
        check_nothing_is_shared(*({one["pid"] for one in theirs} for theirs in of_each))
        # The same processes: no attempt has cost an executor.
        assert {one["pid"] for one in status()["executors"]} == {one["pid"] for one in executors}
        for one in (victim, other):
            one.tell("again")
            assert one.expect("computed")["total"] == TOTAL
        assert [one.wait() for one in (victim, other)] == [0, 0]


def check_refusals(address: str) -> None:
    """Tries a port without a token, with a made up one, and with that of all tenants."""
    tenants = RuntimePaths(Settings.load().runtime_dir).tenant_token.read_text()
    with grpc.insecure_channel(address) as channel:
        stub = executors_pb2_grpc.ExecutorsStub(channel)
        for metadata in ((), bearer("made up"), bearer(tenants)):
            fetch = pb.ExecutorCommand(number=1, fetch=pb.FetchArray(array=1))
            drive = stub.Drive(
                iter([pb.ExecutorCommands(commands=[fetch])]), metadata=metadata, timeout=DEADLINE_S
            )
            assert refusal_of(drive) is grpc.StatusCode.UNAUTHENTICATED
            for transfer in (0, 1):
                take = stub.Take(
                    pb.TakeOffered(transfer=transfer), metadata=metadata, timeout=DEADLINE_S
                )
                assert refusal_of(take) is grpc.StatusCode.PERMISSION_DENIED


def refusal_of(call: Iterator[Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        next(call)
    code: grpc.StatusCode = raised.value.code()
    return code


def check_nothing_is_shared(mine: set[int], others: set[int]) -> None:
    """Compares what the processes hold open, and are connected with."""
    assert not held_by(mine) & held_by(others)
    for pid in mine | others:
        # Tokens come through a pipe: other processes could read them here.
        assert not [part for part in psutil.Process(pid).cmdline() if "token" in part.lower()
                    and not part.startswith("--token_file=/dev/fd/")]  # fmt: skip
        assert not [name for name in psutil.Process(pid).environ() if "TOKEN" in name]


def held_by(pids: set[int]) -> set[str]:
    """Returns the files for writing and the sockets of processes, by name."""
    held = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                name = str(file.readlink())
            except FileNotFoundError:  # closed meanwhile
                continue
            is_own = name.startswith(("socket:", "pipe:", "/memfd", "/dev/shm", "/tmp"))
            if is_own:
                held.add(name)
    return held
