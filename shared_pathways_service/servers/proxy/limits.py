"""The limits of a proxy's clients, besides the memory of devices."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.api.proxy_limits import ProxyLimits
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout

__all__ = ["LARGEST_MESSAGE", "Limits"]

#: The longest message that protobuf can read, in bytes.
LARGEST_MESSAGE = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a proxy.

    Attributes:
      host_memory_bytes: Host buffers of all sessions that arrive, wait or leave; 0: no limit.
      handles: Open handles of a session: arrays, programs, executions and futures.
      requests: Requests of a session that are read and not yet answered. Then no more are read: an
        error would break a loop that dispatches faster than its programs run.
      message_bytes: The size of a request. One of up to twice the size is answered with an error; a
        larger one ends its session.
      unread_bytes: Answers of a session that its client has not read yet.
      sessions: Concurrent sessions.
      trace_s: Seconds of a profile.
      trace_bytes: The size of a profile, of all processes together.
      transfers: Concurrent uploads and downloads of all sessions; others wait.
      stalled_transfer: The time after which a stalled transfer is ended, if others wait.
      calls: Concurrent calls of all methods, including waiting ones; each costs 16 KiB.
      request_timeout_s: The time for the request of a call to arrive, except sessions and uploads.
      slow_reader_s: The time for a client to read the last message of a call.
    """

    host_memory_bytes: int = 0
    handles: int = ProxyLimits.max_handles
    requests: int = ProxyLimits.max_requests
    message_bytes: int = ProxyLimits.max_message_bytes
    unread_bytes: int = 256 << 20
    sessions: int = ProxyLimits.max_sessions
    trace_s: int = ProxyLimits.trace_s
    trace_bytes: int = ProxyLimits.trace_bytes
    transfers: int = 256
    stalled_transfer: Timeout = timeouts.STALLED_TRANSFER
    calls: int = 1 << 16
    request_timeout_s: float = 10.0
    slow_reader_s: float = 600.0
