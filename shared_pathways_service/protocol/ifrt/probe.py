"""Probes whether a proxy answers at an address, with GetVersion of the IFRT proxy protocol."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from shared_pathways_service.api.jax_releases import client_serdes
from shared_pathways_service.errors import ServiceNotReady, SharedPathwaysError, VersionSkew
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2

__all__ = ["ProxyVersion", "probe", "probe_async"]

_METHOD = f"/{ifrt.SERVICE}/GetVersion"
#: The refusal of OpenXLA's server (`ifrt_proxy/server/version.cc`).
_NO_COMMON_VERSION = "failed to agree on the protocol version"
#: Unix sockets and loopback addresses must not go through a web proxy, and a repeated probe must
#: connect at once, without gRPC's back-off.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)


@dataclasses.dataclass(frozen=True, slots=True)
class ProxyVersion:
    """The versions, of the IFRT proxy protocol and of serialised values, that a proxy agreed to."""

    protocol: int
    serdes: int


def probe(address: str, timeout_s: float, *, wait: bool = False) -> ProxyVersion:
    """Asks the proxy at an address for its version.

    Args:
      address: ``unix:/path`` or ``host:port``.
      timeout_s: Seconds for the answer.
      wait: Whether to retry until then if no server listens there yet.

    Raises:
      VersionSkew: The sides have no common version; the error names both ranges.
      ServiceNotReady: No server listens, no answer came in time, or the answer is not from a proxy.
    """
    with grpc.insecure_channel(address, _OPTIONS) as channel:
        call: Any = channel.unary_unary(_METHOD)
        try:
            return _answer(call(_request(), timeout=timeout_s, wait_for_ready=wait), address)
        except grpc.RpcError as error:
            raise _translated(error, address, timeout_s) from error


async def probe_async(address: str, timeout_s: float, *, wait: bool = False) -> ProxyVersion:
    """As `probe`, for asyncio."""
    async with grpc.aio.insecure_channel(address, _OPTIONS) as channel:
        call: Any = channel.unary_unary(_METHOD)
        try:
            return _answer(await call(_request(), timeout=timeout_s, wait_for_ready=wait), address)
        except grpc.aio.AioRpcError as error:
            raise _translated(error, address, timeout_s) from error


def _request() -> bytes:
    request = proxy_pb2.GrpcGetVersionRequest()
    request.min_version.protocol_version = ifrt.PROTOCOL_MIN
    # The versions of JAX's client, which will connect next, not those of this package.
    low, high = _serdes()
    request.min_version.ifrt_serdes_version_number = low
    request.max_version.protocol_version = ifrt.PROTOCOL_MAX
    request.max_version.ifrt_serdes_version_number = high
    return request.SerializeToString()


def _answer(raw: bytes, address: str) -> ProxyVersion:
    try:
        version = proxy_pb2.GrpcGetVersionResponse.FromString(raw).version
    except DecodeError as error:
        raise ServiceNotReady(f"what answers at {address} is no proxy") from error
    answered = ProxyVersion(version.protocol_version, version.ifrt_serdes_version_number)
    if not ifrt.PROTOCOL_MIN <= answered.protocol <= ifrt.PROTOCOL_MAX:
        raise _skew(f"the proxy at {address} answered with protocol {answered.protocol}")
    return answered


def _translated(error: grpc.RpcError, address: str, timeout_s: float) -> SharedPathwaysError:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.FAILED_PRECONDITION or (
        code is grpc.StatusCode.INVALID_ARGUMENT and _NO_COMMON_VERSION in details
    ):
        return _skew(f"the proxy at {address} refuses: {details}", service=details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceNotReady(f"no answer from the proxy at {address} within {timeout_s:g} s")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ServiceNotReady(f"what answers at {address} is no proxy")
    return ServiceNotReady(f"the proxy at {address} does not answer: {code.name}: {details}")


def _serdes() -> tuple[int, int]:
    ours = client_serdes(importlib.metadata.version("jaxlib"))
    return ours or (ifrt.SERDES_MIN, ifrt.SERDES_MAX)


def _skew(message: str, service: str = "") -> VersionSkew:
    low, high = _serdes()
    ours = f"protocol {ifrt.PROTOCOL_MIN} to {ifrt.PROTOCOL_MAX}, serdes {low} to {high}"
    return VersionSkew(
        f"{message}; the client in jaxlib {importlib.metadata.version('jaxlib')} speaks {ours}",
        client=ours,
        service=service,
        hint="install the service's release of jax; docs/compatibility.md has the pairs that work",
    )
