"""Shardings for which XLA ends the process, or is never done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.proxy.raw import F32, Failed, RawClient, single
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.protocol.ifrt.xla_pb2 import OpSharding
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla.op_shardings import checked_op_sharding

ENDLESS = OpSharding(
    type=OpSharding.OTHER,
    tile_assignment_dimensions=[1 << 31],
    iota_reshape_dims=[1 << 31],
    iota_transpose_perm=[0],
)
PAIR: dict[str, Any] = {"type": OpSharding.OTHER, "tile_assignment_dimensions": [2]}
SHARDINGS = {
    "tile_assignment_dimension of 2147483648": ENDLESS,
    "tile_assignment_dimension of -1": OpSharding(
        type=OpSharding.OTHER, tile_assignment_dimensions=[-1, -1]
    ),
    "tile_assignment_dimension of 2:": OpSharding(
        type=OpSharding.OTHER, tile_assignment_dimensions=[2] * 1000
    ),
    r"tile_assignment_dimensions \[1\]: their product must be": OpSharding(
        type=OpSharding.OTHER, tile_assignment_dimensions=[1], tile_assignment_devices=[0]
    ),
    r"tile_assignment_dimensions \[\]: ": OpSharding(type=OpSharding.OTHER),
    "type TUPLE": OpSharding(type=OpSharding.TUPLE),
    "unknown type 9": OpSharding(type=9),  # type: ignore[arg-type]
    "unknown type -1": OpSharding(last_tile_dims=[-1]),  # type: ignore[list-item]
    "tiles, of a type that has none": OpSharding(tile_assignment_dimensions=[2]),
    r"tile_assignment_devices \[\]: they": OpSharding(**PAIR),
    r"tile_assignment_devices \[0, 2\]: they": OpSharding(**PAIR, tile_assignment_devices=[0, 2]),
    r"tile_assignment_devices \[0, -1\]: they": OpSharding(**PAIR, tile_assignment_devices=[0, -1]),
    r"tile_assignment_devices \[1, 1\]: they": OpSharding(**PAIR, tile_assignment_devices=[1, 1]),
    r"tile_assignment_devices \[(0, ){15}0\] and more": OpSharding(
        **PAIR, tile_assignment_devices=[0] * 20
    ),
    r"tile_assignment_devices \[2\]: type MAXIMAL": OpSharding(
        type=OpSharding.MAXIMAL, tile_assignment_devices=[2]
    ),
    r"tile_assignment_devices \[\]: type MAXIMAL": OpSharding(type=OpSharding.MAXIMAL),
    # XLA counts down from 0 without a sign, and asks for that much memory.
    "3 last_tile_dims of 1 dimensions": OpSharding(
        **PAIR, tile_assignment_devices=[0, 1], last_tile_dims=[OpSharding.REPLICATED] * 3
    ),
    "both last_tile_dims and": OpSharding(
        **PAIR,
        tile_assignment_devices=[0, 1],
        last_tile_dims=[OpSharding.REPLICATED],
        replicate_on_last_tile_dim=True,
    ),
    "both tile_assignment_devices and": OpSharding(
        **PAIR, tile_assignment_devices=[0, 1], iota_reshape_dims=[2], iota_transpose_perm=[0]
    ),
    "iota_reshape_dim of 3:": OpSharding(**PAIR, iota_reshape_dims=[3], iota_transpose_perm=[0]),
    r"iota_reshape_dims \[1\]:": OpSharding(**PAIR, iota_reshape_dims=[1], iota_transpose_perm=[0]),
    "iota_transpose_perm of 1 numbers": OpSharding(
        **PAIR, iota_reshape_dims=[2], iota_transpose_perm=[5]
    ),
    "iota_transpose_perm of 0 numbers": OpSharding(**PAIR, iota_reshape_dims=[2]),
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


@pytest.mark.parametrize(
    "sharding",
    [
        OpSharding(),
        OpSharding(type=OpSharding.MANUAL),
        OpSharding(
            type=OpSharding.MAXIMAL, tile_assignment_dimensions=[1], tile_assignment_devices=[1]
        ),
        OpSharding(
            type=OpSharding.OTHER,
            tile_assignment_dimensions=[1, 2],
            tile_assignment_devices=[1, 0],
            replicate_on_last_tile_dim=True,
        ),
        OpSharding(
            type=OpSharding.OTHER,
            tile_assignment_dimensions=[1, 2, 1],
            iota_reshape_dims=[2, 1],
            iota_transpose_perm=[1, 0],
            last_tile_dims=[OpSharding.MANUAL, OpSharding.REPLICATED],
        ),
    ],
)
def test_right(sharding: OpSharding) -> None:
    checked_op_sharding(sharding.SerializeToString(), 2)


def test_what_is_none_is_refused() -> None:
    with pytest.raises(StatusError, match="not an OpSharding"):
        checked_op_sharding(b"\xff", 1)
