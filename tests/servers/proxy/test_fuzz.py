"""The short form of `benchmarks.fuzz`."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fuzz import FuzzError, Witness, check_nothing_left, fuzz
from shared_pathways_service.protocol.ifrt import core_pb2
from tests.processes import DEADLINE_S
from tests.servers.proxy.conftest import LocalProxy, MakeClient, StartProxy
from tests.servers.proxy.raw import DOUBLE, compile_options, single
from tests.servers.proxy.test_sessions import wait_until


@pytest.mark.race
def test_random_requests_and_bytes_hurt_nobody() -> None:
    found = fuzz(15.0, seed=20, tell=print)
    assert set(found["examples"]) == {"sequences", "mutated", "methods", "socket"}
    assert found["witness"]["checked"] > 0


def test_the_fuzzer_sees_what_is_left(proxy: LocalProxy, connect: MakeClient) -> None:
    witness = Witness(proxy.address)
    try:
        wait_until(lambda: witness.checked > 0)
        witness.pause()
        check_nothing_left(proxy.address, DEADLINE_S)
        with connect(proxy.address) as other:
            with pytest.raises(FuzzError, match="'open_sessions': 2"):
                check_nothing_left(proxy.address, 0)
            other.put(np.ones(4), single(0))
            other.store(7, bytes(100))
            with pytest.raises(FuzzError, match=r"'open_handles': 5.*'host_buffers': 1,"):
                check_nothing_left(proxy.address, 0)
        check_nothing_left(proxy.address, DEADLINE_S)
    finally:
        witness.close()


# ---- what it found


def test_a_device_ordinal_below_zero_does_not_end_the_proxy(
    start_proxy: StartProxy, connect: MakeClient
) -> None:
    proxy = start_proxy()
    client = connect(f"unix:{proxy.ready['socket']}" if proxy.ready else "")
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options([0]))
    # executable_build_options.device_ordinal, behind all that is there: the last one counts.
    varint = b"\xff\xff\xec" + b"\xff" * 6 + b"\x01"
    options.compile_options += b"\x1a" + bytes([1 + len(varint)]) + b"\x08" + varint
    handle = client.call(
        "compile",
        program={"type_name": "xla::ifrt::XlaProgram", "data": DOUBLE.encode()},
        compile_options={
            "type_name": "xla::ifrt::XlaCompileOptions",
            "data": options.SerializeToString(),
        },
    ).loaded_executable_handle
    (doubled,) = client.execute(handle, [client.put(np.ones(4), single(0))])
    assert client.fetch(doubled).tolist() == [2.0] * 4
