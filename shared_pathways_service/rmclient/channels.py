"""gRPC settings of channels to a resource manager, for each way to reach one."""

from __future__ import annotations

__all__ = ["LOCAL_CHANNEL", "RELAYED_CHANNEL", "STREAM_CHANNEL", "stream_channel"]

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
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

_SOCKET = "unix:"
_KEEPALIVE = "grpc.keepalive_"


def stream_channel(address: str) -> tuple[tuple[str, int], ...]:
    """Returns the settings for a channel that is used for one stream.

    A resource manager on a socket of this machine is asked for no sign of life: its end ends the
    stream at once, and where both were stopped or suspended, an answer that was late then would end
    it, and with the stream of a worker its slice.
    """
    if not address.startswith(_SOCKET):
        return STREAM_CHANNEL
    return tuple((name, value) for name, value in STREAM_CHANNEL if not name.startswith(_KEEPALIVE))
