"""Proxies as processes, with a real resource manager and workers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from harness.processes import ServerProcess
from tests.servers.proxy.conftest import StartProxy

DATA_LOSS, EXHAUSTED = 15, 8
FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)


def address_of(proxy: ServerProcess) -> str:
    assert proxy.ready is not None, "\n".join(proxy.lines)
    return f"unix:{proxy.ready['socket']}"


# ---- slices


def start_with(
    start_proxy: StartProxy, rm: str, report: Path, *flags: str, **kwargs: Any
) -> ServerProcess:
    return start_proxy(
        f"--resource_manager_address={rm}",
        "--tenant_name=ada-1",
        f"--exit_report={report}",
        *flags,
        **kwargs,
    )


#: Ours, or of grpcio's core, which may tell that the client of a check at the start went away.
GLOG = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.(py|cc):\d+\] ")
