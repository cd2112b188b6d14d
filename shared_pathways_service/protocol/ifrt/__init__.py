"""The IFRT proxy protocol: messages wire-compatible with jaxlib's, under our own package names.

The messages are in `proxy_pb2` (requests and responses), `core_pb2` (types, shapes, shardings),
`xla_pb2` and `status_pb2`. `probe` checks whether a proxy answers. Code that acts on the messages
is in other folders.
"""

from __future__ import annotations

from shared_pathways_service.api.jax_releases import OUR_SERDES

__all__ = [
    "HOST_BUFFER_METADATA",
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "SERDES_MAX",
    "SERDES_MIN",
    "SERVICE",
    "SESSION_METADATA",
]

#: The service's name on the wire, which is jaxlib's.
SERVICE = "xla.ifrt.proxy.GrpcIfrtService"
#: Supported versions of the protocol, inclusive.
PROTOCOL_MIN = 16
PROTOCOL_MAX = 25
#: Supported versions of IFRT's serialised values (shapes, shardings, ...).
SERDES_MIN, SERDES_MAX = OUR_SERDES
#: Metadata of a session's stream: a GrpcIfrtSessionMetadata.
SESSION_METADATA = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
#: Metadata of a host-buffer upload: a GrpcHostBufferStoreMetadata.
HOST_BUFFER_METADATA = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"
