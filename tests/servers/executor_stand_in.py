"""Stands in for an executor: it takes an executor's flags, reports a port, and computes nothing.

What it was started with is a line of JSON in the file FACTS. As MODE says, it never serves, ends
with an error before it serves (after a colon: its last line), ends at SIGTERM without an error,
writes much, or has a child of its own in its process group.
It imports no gRPC, to start fast.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from shared_pathways_service.servers.serving.process import exit_with_parent, report_ready

_FLAGS = {
    "instance_type",
    "host_index",
    "devices",
    "platform",
    "first_device",
    "token_file",
    "bind_address",
    "server_port",
    "ready_fd",
    "parent_pid",
    "memory_limit",
}


def main(facts: str, mode: str, *argv: str) -> None:
    descriptors = [int(one.name) for one in Path("/dev/fd").iterdir()]
    flags = dict(word.removeprefix("--").split("=", 1) for word in argv)
    assert flags.keys() == _FLAGS, sorted(flags)
    exit_with_parent(int(flags["parent_pid"]), lambda: os._exit(0))
    token = Path(flags["token_file"]).read_text()
    child = None
    if mode == "child":
        child = subprocess.Popen(["sleep", "600"])
    if mode == "write":
        os.write(1, b"from stdout\n" + b"x" * 7000 + b"\nlast \xff, without an end")
    if mode == "obey":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if mode.startswith("end:"):
        last = mode.removeprefix("end:")
        os.write(2, f"W1127 03:00:00.000000 7 a.py:1] first\n{last}\n".encode())
        sys.exit(7)
    found = {
        **flags,
        "token": token,
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "child": child and child.pid,
        "directory": str(Path.cwd()),
        "variables": sorted(name for name in os.environ if name.startswith(("SPS_", "TPU_"))),
        "descriptors": descriptors,
    }
    with Path(facts).open("a") as file:
        file.write(json.dumps(found) + "\n")
    if mode != "mute":
        report_ready(int(flags["ready_fd"]), port=40_000 + os.getpid() % 10_000)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
