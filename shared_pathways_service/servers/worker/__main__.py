"""``python -m shared_pathways_service.servers.worker --resource_manager_address=HOST:29001 …``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN, WORKER_PORT
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.flags.parsing import parse_or_exit
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.auth import read_token
from shared_pathways_service.runtime.glog import glog, send_logging_to_glog
from shared_pathways_service.servers.serving.listening import (
    SERVER_OPTIONS,
    Listening,
    listen,
    stop_blocking_server,
)
from shared_pathways_service.servers.serving.process import (
    exit_with_parent,
    install_stop_signals,
    report_ready,
)
from shared_pathways_service.servers.worker.executor_process import executor_command
from shared_pathways_service.servers.worker.flags import WorkerOptions
from shared_pathways_service.servers.worker.manager_session import Session
from shared_pathways_service.servers.worker.orphans import adopt_orphans

_SIGILL_EXIT = 128 + signal.SIGILL


def _exit_at_sigill(_signum: int, _frame: object) -> None:
    # As process 1 of a pod's PID namespace it would ignore a signal without a handler, and the
    # documentation of Pathways on Cloud uses SIGILL to make a worker fail.
    os._exit(_SIGILL_EXIT)


def _hello(options: WorkerOptions, listening: Listening) -> pb.WorkerHello:
    return pb.WorkerHello(
        versions=pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
        slice_id=options.slice_id,
        instance_type=options.instance_type,
        host_index=options.host_index,
        host_count=options.hosts,
        incarnation=str(uuid.uuid4()),
        address=listening.address,
        host=options.host,
        node_pool=options.node_pool,
        pid=os.getpid(),
        runs_executors=True,
    )


def _serve(options: WorkerOptions) -> None:
    """Serves, and keeps the worker registered, until a stop signal."""
    stop = install_stop_signals()
    with contextlib.ExitStack() as stack:
        if options.parent_pid:
            watch = exit_with_parent(options.parent_pid, stop.set)
            if watch is not None:
                stack.callback(watch.close)
        token = read_token(options.token_file)
        if options.colocated_python:
            adopt_orphans("--colocated_python")
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=1))
        server = grpc.server(pool, options=SERVER_OPTIONS)
        stack.callback(stop_blocking_server, server)
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
        listening = listen(
            server,
            server_port=options.server_port,
            server_socket=options.server_socket,
            default_port=WORKER_PORT,
            bind_address=options.bind_address,
        )
        server.start()
        glog("I", f"Pathways Server serving on {listening.shown}")
        glog("I", "MegaScale transport initialized.")
        report_ready(options.ready_fd, port=listening.port, socket=listening.socket)
        executor_host = options.executor_address or options.bind_address
        session = Session(
            options.resource_manager_address,
            _hello(options, listening),
            token,
            beat_interval_s=options.beat_interval_s,
            executor_command=executor_command(
                options.host_index,
                executor_host,
                options.platform,
                options.first_device,
                colocated_python=options.colocated_python,
            ),
            executor_host=executor_host,
            on_welcome=lambda: glog("I", "MegaScale transport init succeeded."),
            on_refused=stop.set,
        )
        stack.callback(session.close)
        stop.wait()
        glog("I", "Pathways Server stopping")
    if session.error is not None:
        raise session.error


def main(argv: Sequence[str]) -> int:
    """Runs the worker; returns its exit code."""
    options = parse_or_exit(WorkerOptions, "worker", argv)
    signal.signal(signal.SIGILL, _exit_at_sigill)
    send_logging_to_glog(log_format=options.log_format)
    # As in the log of Google's image, where people look for a worker's address.
    for number, argument in enumerate(argv, start=1):
        glog("I", f"argv[{number}]: {argument!r}")
    try:
        _serve(options)
    except SharedPathwaysError as error:
        glog("E", str(error))
        return 1
    return options.stop_exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
