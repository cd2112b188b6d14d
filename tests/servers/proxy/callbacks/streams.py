"""Programs that call functions of the client over a stream."""

from __future__ import annotations

import numpy as np
import pytest

from harness.proxy.raw import Failed, Pending, RawClient, single
from shared_pathways_service.metrics.measurement_messages import families_of
from shared_pathways_service.protocol.proxy_status_pb2 import GetCountersResponse
from tests.servers.proxy.callbacks.raw_callbacks import (
    calling,
)
from tests.servers.proxy.conftest import LocalProxy

FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)


def begin(session: RawClient, program: str | None = None, device: int = 0) -> tuple[int, Pending]:
    """Runs `calling`; returns the result's handle, and what waits for it."""
    compiled = session.compile(program or calling(), [device])
    size = 8 if program and "tensor<8x" in program else 4
    (result,) = session.execute(compiled, [session.put(np.arange(size), single(device))])
    return result, session.begin_ready(result)


def counters(proxy: LocalProxy) -> dict[str, float]:
    told = families_of(GetCountersResponse.FromString(proxy.service.get_counters(b"")))
    return {f.name: sum(sample.value for sample in f.samples) for f in told}


def raises(pending: Pending, code: int, *words: str) -> None:
    with pytest.raises(Failed) as raised:
        pending.result()
    assert raised.value.code == code
    for word in words:
        assert word in raised.value.message
