"""Finds out why a proxy refuses a connection, without JAX's client, which does not report it."""

from __future__ import annotations

import queue

import grpc

from shared_pathways_service.errors import (
    AccessDenied,
    CapacityError,
    CredentialsMismatch,
    ServiceNotReady,
    SharedPathwaysError,
    VersionSkew,
)
from shared_pathways_service.jax_client.connection_errors import unreachable
from shared_pathways_service.jax_client.credentials import check_plaintext
from shared_pathways_service.jax_client.plugin import plugin
from shared_pathways_service.jax_client.target import ProxyTarget
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.protocol.ifrt.probe import probe

__all__ = ["reason_of"]

_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def reason_of(target: ProxyTarget, timeout: float) -> SharedPathwaysError | None:
    """Returns why the proxy refuses or cannot be reached; None if it does neither.

    Waits `timeout` seconds for each of two answers.
    """
    if not target.insecure_credentials:
        return None  # the rest requires plaintext
    try:
        answered = probe(target.address, timeout)
    except VersionSkew as skew:
        return skew
    except ServiceNotReady as error:
        try:
            check_plaintext(target.address, timeout)
        except CredentialsMismatch as mismatch:
            return mismatch
        return unreachable(target, error.message)
    if target.one_client:
        return None
    version = proxy_pb2.IfrtProxyVersion(
        protocol_version=answered.protocol, ifrt_serdes_version_number=answered.serdes
    )
    # Local: HTTP proxies must not be used.
    with grpc.insecure_channel(target.address, [("grpc.enable_http_proxy", 0)]) as channel:
        return _try_session(channel, target, version, timeout)


def _try_session(
    channel: grpc.Channel, target: ProxyTarget, version: proxy_pb2.IfrtProxyVersion, timeout: float
) -> SharedPathwaysError | None:
    metadata = proxy_pb2.GrpcIfrtSessionMetadata(version=version)
    if target.token is not None:
        data = metadata.initialization_data.attributes
        data[plugin.TOKEN_KEY].string_value = target.token.encode()
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    # The first request of every session: a proxy that accepts the session answers it.
    first = proxy_pb2.IfrtRequest(init_request=proxy_pb2.InitRequest())
    first.request_metadata.op_id = 1
    requests.put(first.SerializeToString())
    session: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
        f"/{ifrt.SERVICE}/IfrtSession"
    )
    answers = session(
        iter(requests.get, None),
        timeout=timeout,
        metadata=((ifrt.SESSION_METADATA, metadata.SerializeToString()),),
    )
    try:
        next(answers, None)  # it may be ending: a missing answer is not a refusal
    except grpc.RpcError as error:
        return _translated(target, error)
    finally:
        requests.put(None)
    return None


def _translated(target: ProxyTarget, error: grpc.RpcError) -> SharedPathwaysError | None:
    # Every error of a call has both; the base class does not declare them.
    code, details = error.code(), error.details()
    if code in _DENIED:
        return AccessDenied(
            f"the proxy at {target.address} refuses the token: {details}",
            verb="connect",
            resource="proxy",
            hint="a proxy serves only the session that it was created for",
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return CapacityError(
            f"the proxy at {target.address} refuses more sessions: RESOURCE_EXHAUSTED: {details}",
            hint="each process that uses JAX on the proxy has one: end another, or ask the "
            "operator to raise the limit",
        )
    if code in _GONE:
        return unreachable(target, details or "no answer")
    return None
