"""Arrays of float32 on any `DeviceClient`, for its tests."""

from __future__ import annotations

import numpy as np

from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.executors.executor_client import ExecutorClient
from shared_pathways_service.servers.xla.shardings import Placing, Placings

Kind = core_pb2.DTypeProto


def floats(placing: Placing, shape: tuple[int, ...] = (8,)) -> Spec:
    return Spec(Kind.KIND_F32, np.dtype(np.float32), shape, placing)


def put(spec: Spec, whole: np.ndarray) -> object:
    shards = [whole[index] for index in spec.placing.pieces(spec.shape)]
    return spec.placing.client.put(spec, shards)


def content(spec: Spec, array: object) -> np.ndarray:
    """Puts an array's pieces together."""
    whole = np.empty(spec.shape, spec.dtype)
    pieces = spec.placing.client.fetch(array)
    for index, piece in zip(spec.placing.pieces(spec.shape), pieces, strict=True):
        whole[index] = piece
    return whole


def bytes_passed(placings: Placings, devices: int) -> int:
    """Returns the bytes between this process and executors of so many devices; 0 without."""
    client = placings.client((0, 1))
    links = client.present().hosts(range(devices)) if isinstance(client, ExecutorClient) else ()
    return sum(link.sent_bytes + link.received_bytes for link in links)
