"""Shardings for which XLA ends the process, or is never done."""

from __future__ import annotations

import numpy as np
import pytest

from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.protocol.ifrt.xla_pb2 import NamedShardingProto, OpSharding
from shared_pathways_service.servers.proxy.op_shardings import check_op_sharding
from shared_pathways_service.servers.proxy.status import Code, StatusError
from tests.servers.proxy.raw import F32, Failed, RawClient, single

ENDLESS = OpSharding(
    type=OpSharding.OTHER,
    tile_assignment_dimensions=[1 << 31],
    iota_reshape_dims=[1 << 31],
    iota_transpose_perm=[0],
)
SHARDINGS = {
    "tile_assignment_dimension of 2147483648": ENDLESS,
    "tile_assignment_dimension of -1": OpSharding(tile_assignment_dimensions=[-1, -1]),
    "tile_assignment_dimension of 2:": OpSharding(tile_assignment_dimensions=[2] * 1000),
    "type TUPLE": OpSharding(type=OpSharding.TUPLE),
    "unknown type 9": OpSharding(type=9),  # type: ignore[arg-type]
    "unknown type -1": OpSharding(last_tile_dims=[-1]),  # type: ignore[list-item]
    "iota_transpose_perm of 1 numbers": OpSharding(iota_reshape_dims=[2], iota_transpose_perm=[5]),
    "iota_transpose_perm of 0 numbers": OpSharding(iota_reshape_dims=[2]),
    "named_sharding": OpSharding(named_sharding=NamedShardingProto()),
}


@pytest.mark.parametrize("message", SHARDINGS)
def test_refused(client: RawClient, message: str) -> None:
    proto = core_pb2.HloShardingProto(xla_op_sharding=SHARDINGS[message].SerializeToString())
    proto.devices.device_ids.extend([0, 1])
    sharding = core_pb2.ShardingProto()
    sharding.serialized_sharding.type_name = "xla::ifrt::HloSharding"
    sharding.serialized_sharding.data = proto.SerializeToString()
    with pytest.raises(Failed, match=message) as raised:
        client.call(
            "make_array_from_host_buffer",
            dtype={"kind": F32},
            shape={"dims": [4]},
            sharding=sharding,
            array_handle=500,
        )
    assert raised.value.code in {Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED}
    assert client.fetch(client.put(np.ones(4), single(0))).tolist() == [1.0] * 4


def test_what_is_none_is_refused() -> None:
    with pytest.raises(StatusError, match="not an OpSharding"):
        check_op_sharding(b"\xff", 1)
