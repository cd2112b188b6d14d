"""Reads the counters of a proxy."""

from __future__ import annotations

from typing import Any

import grpc

from harness.processes import DEADLINE_S
from shared_pathways_service.metrics.families import values_of
from shared_pathways_service.metrics.measurement_messages import METHOD, SERVICE, families_of
from shared_pathways_service.protocol import proxy_status_pb2 as pb
from shared_pathways_service.protocol.auth import bearer
from tests.servers.proxy.conftest import LocalProxy


def ask(address: str, token: str | None = None) -> pb.GetCountersResponse:
    with grpc.insecure_channel(address) as channel:
        method: Any = channel.unary_unary(
            f"/{SERVICE}/{METHOD}", response_deserializer=pb.GetCountersResponse.FromString
        )
        answer: pb.GetCountersResponse = method(
            b"", metadata=bearer(token), timeout=DEADLINE_S, wait_for_ready=True
        )
        return answer


def counters(proxy: LocalProxy) -> dict[str, Any]:
    return values_of(families_of(ask(proxy.address)))
