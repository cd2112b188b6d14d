"""Programs for Shardy with shardings in XLA's own form, some of which end XLA's process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from jaxlib import xla_client

from harness.proxy.programs import compile_options, sharded_double
from harness.proxy.raw import RawClient, split
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.xla.xla_flags import is_known
from tests.servers.proxy.conftest import MakeClient, StartProxy

DEVICES = range(2)
EIGHT = np.arange(8, dtype=np.float32)
FLAG = "xla_enable_hlo_sharding_v3"
TILES = 'mhlo.sharding = "{devices=[2]<=[2]}"'
PLAIN = sharded_double(2).replace(f" {{{TILES}}}", "")
PROGRAMS = {
    "argument and result": sharded_double(2),
    "operation": PLAIN.replace("%x, %x :", f"%x, %x {{{TILES}}} :"),
    "manual argument": PLAIN.replace(
        "%x: tensor<8xf32>", '%x: tensor<8xf32> {mhlo.sharding = "{manual}"}'
    ),
    "custom call": PLAIN.replace(
        "stablehlo.add %x, %x : tensor<8xf32>",
        f"stablehlo.custom_call @Sharding(%x) {{{TILES}}} : (tensor<8xf32>) -> tensor<8xf32>",
    ),
}


def for_shardy(devices: Sequence[int], flag: bool | None) -> bytes:
    """Serialised XlaCompileOptionsProto; `flag` as a client of that release sets it."""
    outer = core_pb2.XlaCompileOptionsProto.FromString(compile_options(devices))
    options = xla_client.CompileOptions.ParseFromString(outer.compile_options)
    options.executable_build_options.use_shardy_partitioner = True
    if flag is not None:
        options.env_option_overrides = [(FLAG, flag)]
    outer.compile_options = options.SerializeAsString()
    return outer.SerializeToString()


@pytest.fixture
def session(start_proxy: StartProxy, connect: MakeClient) -> RawClient:
    """A session with a proxy that is a process."""
    proxy = start_proxy()
    assert proxy.ready is not None, "\n".join(proxy.lines)
    return connect(f"unix:{proxy.ready['socket']}")


def test_tiles_where_shardy_meets_them_do_not_end_the_proxy(session: RawClient) -> None:
    for program in PROGRAMS.values():
        for flag in (None, True) if is_known(FLAG) else (None,):
            compiled = session.call(
                "compile",
                program=core_pb2.Serialized(
                    type_name="xla::ifrt::XlaProgram", data=program.encode()
                ),
                compile_options=core_pb2.Serialized(
                    type_name="xla::ifrt::XlaCompileOptions", data=for_shardy(DEVICES, flag)
                ),
            ).loaded_executable_handle
            assert compiled
    (result,) = session.execute(
        session.compile(sharded_double(2), DEVICES), [session.put(EIGHT, split(DEVICES))]
    )
    np.testing.assert_array_equal(session.fetch(result), 2 * EIGHT)
