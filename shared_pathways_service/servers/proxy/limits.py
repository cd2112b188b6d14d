"""What one proxy gives its clients at most, beside the memory of devices."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.api.proxy_limits import ProxyLimits

__all__ = ["LARGEST_MESSAGE", "Limits"]

#: Bytes of a message that protobuf can read at all.
LARGEST_MESSAGE = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a proxy.

    Attributes:
      host_memory_bytes: Of host buffers that come, wait or go, of all sessions; 0: no limit.
      handles: A session may have open: arrays, programs, executions and futures together.
      requests: Of a session that are read and whose answers are not yet sent. No more are read
        then: an error would break a loop that dispatches faster than its programs run.
      message_bytes: Of a request. One of up to twice the size is answered with an error, a larger
        one ends its session.
      unread_bytes: Of a session's answers that wait for their client to read them.
      sessions: At a time.
      transfers: Uploads and downloads at a time, of all sessions; others wait.
      transfer_patience_s: Seconds after which a transfer that does not move is ended, if others
        wait.
      calls: At a time, of all methods, those included that wait for a thread; one costs 16 KiB.
      request_timeout_s: For the request of a call that is no session and no upload to come.
      slow_reader_s: For a client to take the last of a call that is over.
    """

    host_memory_bytes: int = 0
    handles: int = ProxyLimits.max_handles
    requests: int = ProxyLimits.max_requests
    message_bytes: int = ProxyLimits.max_message_bytes
    unread_bytes: int = 256 << 20
    sessions: int = ProxyLimits.max_sessions
    transfers: int = 256
    transfer_patience_s: float = 60.0
    calls: int = 1 << 16
    request_timeout_s: float = 10.0
    slow_reader_s: float = 600.0
