"""A pytest plug-in that lets the kernel delay timers of all processes of tests a little.

In each program that is attached to a proxy, jaxlib's IFRT proxy client has a thread that sleeps for
50 microseconds again and again (`RpcHelper::Batcher::PeriodicFlusher`). With many programs at once
it takes a part of each core. With more slack, as the kernel calls it, it wakes up less often.
Events are not delayed; sleeps and time-outs end up to a millisecond later.
"""

from __future__ import annotations

import sys

from harness.fork_server.c_library import call

__all__ = ["SLACK_NS", "allow_late_timers"]

#: Nanoseconds by which a timer may be late; the kernel's default is 50 microseconds.
SLACK_NS = 1_000_000
_PR_SET_TIMERSLACK = 29


def allow_late_timers() -> None:
    """Sets the slack of this thread, and of the threads and processes that it starts after."""
    if sys.platform == "linux":
        call("prctl", _PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0, subject="timer slack")


def pytest_configure() -> None:
    """Sets it before the fork servers start, which pass it on."""
    allow_late_timers()
