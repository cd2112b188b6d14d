"""The first process of a stand-in: runs one of this project's servers as its child."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from shared_pathways_service.servers.serving.process import CaughtSignals
from shared_pathways_service.testing.google_images.log_form import googles_form, serving_port
from shared_pathways_service.testing.google_images.log_texts import PUBLISHED, LogText

__all__ = ["become_nobody", "log", "log_arguments", "run_server", "without_our_variables"]

_NOBODY: Final = 65534
#: In an image all users may read the server's files; on this machine ``nobody`` needs this.
_READING: Final = "-all,+dac_read_search"
#: Signals to forward to the server. Pathways' documents use SIGILL to make a worker fail.
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGILL)
#: This project's variable that a server gets: the address that it binds.
_PASSED: Final = "SPS_BIND_ADDRESS"


def become_nobody(module: str, argv: Sequence[str]) -> None:
    """Runs a module (``python -m``) in this process again as user ``nobody``, if possible."""
    if os.geteuid() != 0 or not _has_nobody() or shutil.which("setpriv") is None:
        return
    words = [
        "setpriv",
        f"--reuid={_NOBODY}",
        f"--regid={_NOBODY}",
        "--clear-groups",
        f"--inh-caps={_READING}",
        f"--ambient-caps={_READING}",
        # The change of user would clear it.
        "--pdeathsig=KILL",
    ]
    os.execvp(words[0], [*words, sys.executable, "-P", "-m", module, *argv])  # noqa: S606


def without_our_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without the variables that only this project's images read."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("SPS_") or name == _PASSED
    }


def log(severity: str, text: LogText, **values: object) -> None:
    """Writes a line of the stand-in's own, with glog's header."""
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    micros = int(now % 1 * 1_000_000)
    head = f"{severity}{stamp}.{micros:06d} {os.getpid():>7}"
    _write(f"{head} {text.line(**values)}\n")


def log_arguments(argv: Sequence[str]) -> None:
    """Logs the arguments, as the images do."""
    for number, argument in enumerate(argv, start=1):
        log("I", PUBLISHED["an argument"], number=number, argument=argument)


def run_server(
    module: str,
    argv: Sequence[str],
    *,
    passed: Sequence[int] = (),
    on_serving: Callable[[int], object] = lambda _port: None,
) -> int:
    """Runs a server to its end, and writes its log in the images' format.

    Args:
      module: The server.
      argv: Its flags.
      passed: Descriptors that it inherits.
      on_serving: Called with its port once it serves, before the line that says so.

    Returns:
      Its exit code; 128 + N if it was ended by signal N, or told to end by SIGTERM.
    """
    signals = CaughtSignals(_FORWARDED)
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *argv, f"--parent_pid={os.getpid()}"],
        env=without_our_variables(os.environ),
        pass_fds=passed,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
    )
    received: set[int] = set()

    def forward(number: int) -> None:
        received.add(number)
        server.send_signal(number)

    signals.pass_to(forward)
    assert server.stderr is not None
    with server.stderr:
        for line in server.stderr:
            if (port := serving_port(line.rstrip("\n"))) is not None:
                on_serving(port)
            if (written := googles_form(line.rstrip("\n"))) is not None:
                _write(f"{written}\n")
    code = server.wait()
    if signal.SIGTERM in received:
        log("E", PUBLISHED["a signal"], pid=os.getpid(), sender=0)
        log("E", PUBLISHED["the default behavior"])
        return 128 + signal.SIGTERM
    return code if code >= 0 else 128 - code


def _has_nobody() -> bool:
    """Whether this user namespace has the user ``nobody``."""
    ranges = (
        map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines()
    )
    return any(first <= _NOBODY < first + count for first, _, count in ranges)


def _write(text: str) -> None:
    os.write(2, text.encode())
