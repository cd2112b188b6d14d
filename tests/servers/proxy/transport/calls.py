"""Calls of a proxy, and faults of its gRPC server."""

from __future__ import annotations

import gc
from typing import Any

from shared_pathways_service.servers.grpc_core.core_call import CoreCall


def lost(*_arguments: Any, **_named: Any) -> None:
    """What an operation of another grpcio might do."""


def ended(*_arguments: Any) -> None:
    raise TypeError("start_server_batch() takes 4 positional arguments")


# ---- what calls leave


def calls() -> list[CoreCall]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is CoreCall]
