"""The standard health service of gRPC (``grpc.health.v1.Health``), as probes of Kubernetes call it.

Its two messages are so small that their bytes stand here instead of one more dependency. Source of
their form: grpc/grpc, doc/health-checking.md.
"""

from __future__ import annotations

import grpc

__all__ = ["HEALTH_SERVICE", "health_handler"]

HEALTH_SERVICE = "grpc.health.v1.Health"

# HealthCheckResponse: field 1, a varint, SERVING.
_SERVING = b"\x08\x01"


def health_handler() -> grpc.GenericRpcHandler:
    """Returns the handler of ``Check``, for `add_generic_rpc_handlers` of a server of either kind.

    Whoever answers is serving; all service names are answered alike.
    """
    check: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_check)
    return grpc.method_handlers_generic_handler(HEALTH_SERVICE, {"Check": check})


def _check(_request: bytes, _context: object) -> bytes:
    return _SERVING
