"""The properties of a machine that compiled programs depend on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from shared_pathways_service.patience import timeouts

__all__ = ["machine_identity"]

#: Lines of /proc/cpuinfo that decide which instructions XLA may use, on x86 and on ARM.
_CPU_LINES = frozenset(
    [
        *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
    ]
)


def machine_identity(cpuinfo: Callable[[], str] | None = None) -> bytes | None:
    """Returns the properties of this machine that compiled programs depend on; None if unknown.

    They are CPUs, their features, and how many of them this process may use. XLA loads a program
    that was compiled for another CPU with only a line in its log, and the first instruction that
    this CPU does not have ends the process.
    """
    try:
        text = (cpuinfo or _cpuinfo)()
    except (OSError, subprocess.SubprocessError):
        return None
    properties = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if sys.platform == "darwin" or name.strip() in _CPU_LINES:
            properties.add(f"{name.strip()}={value.strip()}")
    if not properties:
        return None
    # XLA splits its work among as many threads.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return "\n".join([platform.machine(), sys.platform, str(cpus), *sorted(properties)]).encode()


def _cpuinfo() -> str:
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "machdep.cpu", "hw.optional"]
        return subprocess.check_output(command, text=True, timeout=timeouts.PROCESSOR_DESCRIPTION.s)
    return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
