"""``python -m shared_pathways_service.testing.testbed``: the process that runs a testbed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.flags.parsing import parse_or_exit
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.servers.serving.process import STOP_SIGNALS, ProcessWatch
from shared_pathways_service.testing.testbed.supervisor import Supervisor, TestbedOptions

_log = logging.getLogger(__name__)


def _report(ready_fd: int | None, outcome: dict[str, str]) -> None:
    if ready_fd is None:
        return
    # The caller may have stopped waiting.
    with os.fdopen(ready_fd, "w", encoding="utf-8") as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(json.dumps(outcome) + "\n")
        pipe.flush()


async def _run(options: TestbedOptions) -> None:
    supervisor = Supervisor(options)
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, supervisor.stop, signal.Signals(number).name)
        if options.parent_pid:
            # Notified rather than killed with its parent, so that programs end in order.
            def on_end() -> None:
                # No other process is left to do it.
                stack.callback(shutil.rmtree, options.directory, ignore_errors=True)
                loop.call_soon_threadsafe(supervisor.stop, "the process that started it has ended")

            watch = ProcessWatch(identity_of(options.parent_pid), on_end)
            stack.callback(watch.close)
        await supervisor.run(lambda: _report(options.ready_fd, {}))


def main(argv: Sequence[str]) -> int:
    """Runs a testbed; returns the exit code."""
    options = parse_or_exit(TestbedOptions, "testbed", argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        asyncio.run(_run(options))
    except SharedPathwaysError as error:
        _log.error("%s", error)
        _report(options.ready_fd, {"error": str(error)})
        return 1
    except ProcessLookupError:
        return 0  # the parent had already ended
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
