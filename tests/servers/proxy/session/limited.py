"""A proxy with limits of its clients."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from harness.proxy.raw import RawClient, single, spec
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.proxy.engine.compiled_program import Program
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.values import Value
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.memory import Charge, HostCharge
from shared_pathways_service.servers.proxy.session.answers import Answers
from shared_pathways_service.servers.proxy.session.buffers import HostBuffer
from shared_pathways_service.servers.proxy.session.session import Session
from tests.servers.proxy.conftest import LocalProxy, MakeProxy

EXHAUSTED = 8
FOUR = np.arange(4, dtype=np.float32)


def limited(make_proxy: MakeProxy, **limits: Any) -> LocalProxy:
    return make_proxy(limits=Limits(**limits))


def make_errors(count: int) -> dict[str, Any]:
    """A request for arrays that cost nothing but their handles."""
    return {"array_specs": [spec((1,), single(0))] * count, "error": {"code": 3, "message": "no"}}


def begin_lookup(client: RawClient, handle: int) -> Any:
    request = proxy_pb2.GrpcHostBufferLookupRequest(session_id=client.session_id, handle=handle)
    method: Any = client.channel.unary_stream(f"/{ifrt.SERVICE}/HostBufferLookup")
    return method(request.SerializeToString())


def live(proxy: LocalProxy) -> dict[str, int]:
    """What there is of each kind that a session may leave behind."""
    gc.collect()
    kinds = (Session, Value, Operation, Program, HostBuffer, Charge, HostCharge, Answers)
    found = [type(thing) for thing in gc.get_objects()]
    held = {"device memory": proxy.engine.memory.held(0)}
    return {kind.__name__: sum(issubclass(f, kind) for f in found) for kind in kinds} | held
