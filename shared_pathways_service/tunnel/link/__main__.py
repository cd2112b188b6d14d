"""The far end of a link as a program, beside a proxy.

``python -m shared_pathways_service.tunnel.link --port=29002 --target=HOST:29000 --token_file=FILE``

It needs only the standard library, this folder, `tunnel.liveness`, `runtime.allocator`,
`runtime.listeners`, and the packages they are in. On standard output it prints ``{"link": {"port":
…, "accepted": …, …}}`` as soon as it listens, and for each later change of the counters, at most
once per second. Its log is standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from shared_pathways_service.runtime import allocator
from shared_pathways_service.tunnel.link.connectors import connector_of
from shared_pathways_service.tunnel.link.far_end import FarEnd, FarOptions

__all__ = ["main"]

_REPORT_INTERVAL_S = 1.0
#: Bytes of freed memory that the process keeps for the next messages.
_KEPT_BYTES = 32 << 20
_READ_BYTES = 4096

_log = logging.getLogger("link")


def main(argv: Sequence[str]) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code."""
    options = _parse(argv)
    logging.basicConfig(format="%(levelname).1s %(message)s", level=logging.INFO)
    try:
        token = Path(options.token_file).read_bytes().strip()
    except OSError as error:
        _log.error("cannot read --token_file=%s: %s", options.token_file, error.strerror)
        return 2
    if not token:
        _log.error("--token_file=%s contains no token", options.token_file)
        return 2
    allocator.keep(_KEPT_BYTES)
    return asyncio.run(_serve(options, token))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="link", description="The far end of a resumable link.")
    parser.add_argument("--port", type=int, required=True, help="Listen on this port; 0: any.")
    parser.add_argument("--bind_address", default="0.0.0.0", help="Bind this address.")  # noqa: S104
    parser.add_argument(
        "--target", required=True, help="Connect with the proxy at HOST:PORT or unix:/PATH."
    )
    parser.add_argument("--token_file", required=True, help="Require the token in this file.")
    parser.add_argument(
        "--keep_s", type=float, default=FarOptions.keep_s, help="Keep a session for so long."
    )
    parser.add_argument(
        "--ends_with_stdin", action="store_true", help="End when standard input ends."
    )
    options = parser.parse_args(argv)
    try:
        options.connect = connector_of(options.target)
    except ValueError as error:
        parser.error(f"--target: {error}")
    return options


async def _serve(options: argparse.Namespace, token: bytes) -> int:
    loop = asyncio.get_running_loop()
    reason: asyncio.Future[str] = loop.create_future()

    def stop(text: str) -> None:
        if not reason.done():
            reason.set_result(text)

    def read_stdin() -> None:
        if not os.read(0, _READ_BYTES):
            loop.remove_reader(0)
            stop("the proxy has ended")

    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop, "the far end was stopped")
    if options.ends_with_stdin:
        loop.add_reader(0, read_stdin)
    far = FarEnd(token, options.connect, FarOptions(keep_s=options.keep_s))
    try:
        port = await far.start(options.bind_address, options.port)
    except OSError as error:
        _log.error("cannot listen on port %d: %s", options.port, error.strerror or error)
        return 1
    reports = _Reports(far, port)
    reporter = loop.create_task(reports.run())
    await far.close(await reason)
    reporter.cancel()
    reports.write()
    return 0


class _Reports:
    """The lines on standard output."""

    def __init__(self, far: FarEnd, port: int) -> None:
        self._far = far
        self._port = port
        self._last = ""

    async def run(self) -> None:
        while True:
            self.write()
            await asyncio.sleep(_REPORT_INTERVAL_S)

    def write(self) -> None:
        """Writes a line if it differs from the last one."""
        far = self._far
        counts = dataclasses.asdict(far.counters)
        gauges = {"sessions": far.sessions, "carriers": far.carriers}
        line = json.dumps({"link": {"port": self._port, **counts, **gauges}})
        if line != self._last:
            self._last = line
            # (The proxy may have ended.)
            with contextlib.suppress(BrokenPipeError):
                os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
