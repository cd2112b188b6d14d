"""``python -m shared_pathways_service.servers.executor --instance_type=tpuv6e:2x2 …``."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.flags.parsing import parse_or_exit
from shared_pathways_service.protocol.auth import read_token
from shared_pathways_service.runtime import descriptors
from shared_pathways_service.runtime.glog import glog, send_logging_to_glog
from shared_pathways_service.servers.executor.exchange import Offers
from shared_pathways_service.servers.executor.executor_commands import Commands
from shared_pathways_service.servers.executor.executor_engine import Engine
from shared_pathways_service.servers.executor.executor_server import executor_server
from shared_pathways_service.servers.executor.executor_service import ExecutorService
from shared_pathways_service.servers.executor.flags import ExecutorOptions
from shared_pathways_service.servers.executor.python_calls import PythonCalls
from shared_pathways_service.servers.serving.call_threads import CallThreads
from shared_pathways_service.servers.serving.listening import SERVER_OPTIONS, listen
from shared_pathways_service.servers.serving.process import (
    StopSignals,
    exit_with_parent,
    report_ready,
)

#: A stream, others that are refused, and those of other executors.
_CALLS = 4 + 64
_OPTIONS = (
    *SERVER_OPTIONS,
    ("grpc.max_receive_message_length", -1),
    # (Seconds: a proxy whose host is gone keeps this process, and its tenant's arrays, so long.)
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A proxy's pings find out whether this process still lives.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A proxy and each transfer have connections of their own. One that opens calls without end, and
    # without a token, would delay the answers to the proxy's pings until it gives this process up.
    ("grpc.max_concurrent_streams", 1),
)


#: Loads what computes, which may be slow.
LoadEngine = Callable[[ExecutorOptions], Engine]


def _xla_engine(options: ExecutorOptions) -> Engine:
    from shared_pathways_service.servers.executor.opened_clients import XlaEngine  # noqa: PLC0415
    from shared_pathways_service.servers.xla.host_platforms import host_platform  # noqa: PLC0415

    kind = InstanceType.parse(options.instance_type)
    platform = host_platform(options.platform, kind, options.own_devices, options.first_device)
    return XlaEngine(options.own_devices, options.bind_address, platform)


def _serve(options: ExecutorOptions, stop: threading.Event, load_engine: LoadEngine) -> int:
    """Serves until it is to stop; returns the exit code."""
    token = read_token(options.token_file)
    descriptors.raise_limit()
    connections = options.connection_options()
    if options.memory_limit:
        resource.setrlimit(resource.RLIMIT_DATA, (options.memory_limit, options.memory_limit))
    # Only now: JAX is slow to load, and the limit holds for it as well.
    engine = load_engine(options)
    # (What is loaded stays: a full collection would take tens of milliseconds, in the middle of
    # programs.)
    gc.freeze()
    offers = Offers()
    process = f"the executor of host {options.host_index} at {options.bind_address}"
    service = ExecutorService(
        lambda report: Commands(
            engine, report, offers, process, PythonCalls(is_allowed=options.colocated_python)
        ),
        offers,
        token,
        stop.set,
    )
    # (It ends with the process.)
    pool = CallThreads(_CALLS, "call")
    server = executor_server(service, (*_OPTIONS, *connections), pool, options.transport)
    listening = listen(
        server,
        server_port=options.server_port,
        server_socket="",
        default_port=0,
        bind_address=options.bind_address,
    )
    server.start()
    glog("I", f"Host {options.host_index} of {options.instance_type} on {listening.shown}")
    report_ready(options.ready_fd, port=listening.port)
    stop.wait()
    glog("I", "The executor ends")
    return service.exit_code


def main(argv: Sequence[str], load_engine: LoadEngine = _xla_engine) -> NoReturn:
    """Runs the executor, and ends the process.

    Args:
      argv: Its flags.
      load_engine: Loads its engine.
    """
    stop = threading.Event()
    StopSignals(stop.set)
    faulthandler.enable(all_threads=False)
    options = parse_or_exit(ExecutorOptions, "executor", argv)
    send_logging_to_glog(log_format=options.log_format)
    if options.parent_pid:
        # It may be busy in XLA: without waiting for anything.
        exit_with_parent(options.parent_pid, lambda: _exit(0))
    try:
        _exit(_serve(options, stop, load_engine))
    except SharedPathwaysError as error:
        glog("E", str(error))
        _exit(2 if isinstance(error, InvalidRequestError) else 1)


def _exit(code: int) -> NoReturn:
    # Threads may be in a program that XLA cannot stop, and clients of several processes end theirs
    # badly: do not wait for either.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
