"""``python -m shared_pathways_service.servers.supervisor``: the service, without a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.flags.parsing import parse_or_exit
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.runtime import descriptors
from shared_pathways_service.runtime.glog import glog, send_logging_to_glog
from shared_pathways_service.runtime.inherited_signals import reset_inherited_signals
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.serving.process import STOP_SIGNALS, report_failure
from shared_pathways_service.servers.supervisor.supervisor import Supervisor

__all__ = ["main"]


async def _run(options: SupervisorOptions, settings: Settings) -> None:
    supervisor = None
    try:
        supervisor = Supervisor(options, settings)
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            why = f"it got {signal.Signals(number).name}"
            loop.add_signal_handler(number, supervisor.stop, why)
        await supervisor.run()
    except SharedPathwaysError as error:
        # (Its log may be on the disk that is full.)
        if options.detached and (supervisor is None or not supervisor.has_reported):
            report_failure(options.ready_fd, str(error))
        raise


def main() -> int:
    """Runs the service; returns the exit code."""
    options = parse_or_exit(SupervisorOptions, "supervisor", sys.argv[1:])
    send_logging_to_glog(log_format=options.log_format)
    # Its children inherit both.
    os.environ["SPS_LOG_FORMAT"] = "json" if options.log_format == "json" else "text"
    reset_inherited_signals()
    descriptors.raise_limit()
    if options.detached:
        # Its working directory must not keep the starter's directory in use.
        os.chdir("/")
    try:
        asyncio.run(_run(options, Settings.load()))
    except SharedPathwaysError as error:
        glog("E", str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
