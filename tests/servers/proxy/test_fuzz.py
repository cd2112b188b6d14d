"""The short form of `benchmarks.fuzz`."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fuzz import fuzz
from shared_pathways_service.protocol.ifrt import core_pb2
from tests.servers.proxy.conftest import MakeClient, StartProxy
from tests.servers.proxy.raw import DOUBLE, compile_options, single


@pytest.mark.race
def test_random_requests_and_bytes_hurt_nobody() -> None:
    found = fuzz(15.0, seed=20, tell=print)
    assert set(found["examples"]) == {"sequences", "mutated", "methods", "socket"}
    assert found["witness"]["checked"] > 0


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
