"""Arrays of tests, requests that move them, and codes of their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.proxy.raw import RawClient, single, spec
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2

INVALID, NOT_FOUND, EXHAUSTED, UNIMPLEMENTED, DATA_LOSS = 3, 5, 8, 12, 15
FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)
REUSE = proxy_pb2.ARRAY_COPY_SEMANTICS_REUSE_INPUT
DONATE = proxy_pb2.ARRAY_COPY_SEMANTICS_DONATE_INPUT
COPY = proxy_pb2.ARRAY_COPY_SEMANTICS_ALWAYS_COPY
Kind = core_pb2.DTypeProto


def of_kind(kind: int, shape: Sequence[int], sharding: core_pb2.ShardingProto) -> Any:
    made = spec(shape, sharding)
    made.dtype.kind = kind  # type: ignore[assignment]
    return made


def pinned(device: int) -> core_pb2.ShardingProto:
    """The host's memory of one device."""
    sharding = single(device)
    message = core_pb2.SingleDeviceShardingProto(device_id=device, memory_kind="pinned_host")
    sharding.serialized_sharding.data = message.SerializeToString()
    return sharding


def reshard(
    client: RawClient, array: int, wanted: core_pb2.ArraySpecProto, semantics: int = COPY
) -> int:
    made: int
    (made,) = client.call(
        "reshard_arrays", array_handles=[array], array_specs=[wanted], copy_semantics=semantics
    ).array_handles
    return made


def pieces(client: RawClient, array: int) -> list[list[float]]:
    parts = client.call("disassemble_into_single_device_arrays", array_handle=array).array_handles
    return [client.fetch(part).tolist() for part in parts]


# ---- resharding

HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
QUARTERS = [[0, 1], [2, 3], [4, 5], [6, 7]]
