"""What one proxy gives its clients at most, beside the memory of devices."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["LARGEST_MESSAGE", "Limits", "default_host_memory"]

#: Bytes of a message that protobuf can read at all.
LARGEST_MESSAGE = (1 << 31) - 1

_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


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
    """

    host_memory_bytes: int = 0
    handles: int = 1_000_000
    requests: int = 16_384
    message_bytes: int = 256 << 20
    unread_bytes: int = 256 << 20
    sessions: int = 32
    transfers: int = 256
    transfer_patience_s: float = 60.0


def default_host_memory(read: Callable[[str], str] = lambda path: Path(path).read_text()) -> int:
    """Returns half of the memory that this process may have, in bytes.

    Args:
      read: Returns a file's text.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            text = read(path).strip()
        except OSError:
            continue
        # "max" where there is none, or a number above all memory.
        if text.isdecimal():
            memory = min(memory, int(text))
    return memory // 2
