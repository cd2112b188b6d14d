"""Compares forked processes with new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.fork_server import client

__all__ = ["REPORT", "both"]

#: Prints what a process can see of its start.
REPORT = """
import json, os, resource, signal, sys, warnings
with open("/proc/self/cmdline") as file:
    shown = file.read()
with open("/proc/self/environ") as file:
    environ = file.read()
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "shown": shown,
    "name": __name__, "package": __package__, "file": globals().get("__file__"),
    "environment": dict(os.environ), "shown_environment": sorted(environ.split("\\0")),
    "directory": os.getcwd(), "parent": os.getppid(),
    "own_session": os.getsid(0) == os.getpid(), "own_group": os.getpgrp() == os.getpid(),
    "umask": os.umask(0), "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "ignored": [n for n in range(1, 32) if signal.getsignal(n) is signal.SIG_IGN],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "warnings": [sys.warnoptions, [str(f) for f in warnings.filters]],
    "threads": len(os.listdir("/proc/self/task")),
    "streams": [[s.encoding, s.errors, s.name, s.mode, s.line_buffering, s.write_through,
        type(s.buffer).__name__] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "input": sys.stdin.read(),
    "imported": [name in sys.modules for name in ("jax", "numpy", "grpc", "asyncio")],
}))
"""


def both(start: Callable[[], Any]) -> tuple[Any, Any]:
    """Returns what a start gives with forks, and without."""
    forked = start()
    with client.paused():
        return forked, start()
