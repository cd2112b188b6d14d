"""gRPC settings of channels to a resource manager, for each way to reach one."""

from __future__ import annotations

__all__ = ["LOCAL_CHANNEL", "RELAYED_CHANNEL", "STREAM_CHANNEL"]

#: For a channel that is used for one stream, over the network of a cluster.
STREAM_CHANNEL: tuple[tuple[str, int], ...] = (
    # HTTP proxies are not for addresses of this machine or of the cluster.
    ("grpc.enable_http_proxy", 0),
    # A resource manager whose machine has failed does not end the stream. Its own limit is one
    # ping in 10 s (servers/resource_manager/__main__.py).
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The timeout of a connection attempt, 20 s by default: as long as a restarted resource manager
    # waits for its workers and proxies, whose name for it may still resolve to its old address.
    ("grpc.min_reconnect_backoff_ms", 5_000),
)

#: For a channel that stays open over restarts of a resource manager on this machine.
LOCAL_CHANNEL: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Calls are retried by their callers.
    ("grpc.enable_retries", 0),
)

#: For a channel that stays open over restarts of a resource manager behind a relay. A connection
#: attempt has gRPC's 20 s, as the relay may have to find and dial a pod in them. The longest pause
#: between attempts is two minutes by default.
RELAYED_CHANNEL: tuple[tuple[str, int], ...] = (
    # (The relay goes through the network's proxy, if there is one.)
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
