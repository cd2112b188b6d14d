"""``python -m shared_pathways_service.servers.resource_manager --server_port=29001 …``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc

from shared_pathways_service.constants import RESOURCE_MANAGER_PORT
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events.manager_events import PhysicalSliceLost, SliceReady
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.flags.parsing import parse_or_exit
from shared_pathways_service.kube.in_cluster import in_cluster_access
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import TokenInterceptor, read_token
from shared_pathways_service.runtime import descriptors
from shared_pathways_service.runtime.glog import glog, send_logging_to_glog
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.servers.resource_manager.authority import Authority
from shared_pathways_service.servers.resource_manager.executor_directory import ExecutorDirectory
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.servers.resource_manager.lease.lease_terms import Timing
from shared_pathways_service.servers.resource_manager.manager_metrics import families
from shared_pathways_service.servers.resource_manager.recording import Recording
from shared_pathways_service.servers.resource_manager.service import ResourceManagerService, Verify
from shared_pathways_service.servers.resource_manager.steady_clock import SteadyClock
from shared_pathways_service.servers.resource_manager.store import Store, open_store
from shared_pathways_service.servers.resource_manager.streams import TenantStreams, WorkerStreams
from shared_pathways_service.servers.serving.admission import Admission
from shared_pathways_service.servers.serving.listening import SERVER_OPTIONS, listen, stop_server
from shared_pathways_service.servers.serving.process import (
    STOP_SIGNALS,
    exit_with_parent,
    report_ready,
)

#: Far above any valid message: a larger one is a mistake or an attack.
_LIMITS = (
    ("grpc.max_receive_message_length", 1 << 20),
    # When calls arrive faster than they are accepted, gRPC by default cancels some from 1,000 on,
    # whichever client sent them.
    ("grpc.server.max_pending_requests", 1 << 15),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 16),
    # A peer whose machine has failed does not end its stream; missing heartbeats show it earlier.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 60_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
#: The only methods that a proxy calls; with the others a tenant could end another, or a slice.
_TENANTS_METHODS = ("/shared_pathways_service.v1.ResourceManager/TenantSession",)
#: Kubernetes' probes send no token, and a busy resource manager must not fail them.
_PROBES = (f"/{health.SERVICE_NAME}/Check",)
#: The longest event in the log, in characters.
_LINE_LIMIT = 1000

#: SQLite's name for a database in memory, and the number of decisions that its history keeps.
_IN_MEMORY = ":memory:"
_ROWS_IN_MEMORY = 10_000


#: `gc.set_threshold`. With ten thousand workers nearly all objects live as long as the workers do:
#: with Python's defaults, garbage collection is 40 % of the cost of their joining, and a full
#: collection blocks the event loop for a second. Garbage here is young, or so little, that frequent
#: small collections suffice.
_GARBAGE = (10_000, 5, 200)


def _stop_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class _SliceCounter:
    """Logs events and the number of ready slices, as the real image does."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._ready: set[str] = set()

    def __call__(self, event: Event) -> None:
        words = [event.kind, event.tenant, event.slice, event.reason]
        words += [f"{name}={value}" for name, value in event.data.items()]
        # A tenant's request may be long; its events contain all of it.
        glog("I", " ".join(str(word) for word in words if word)[:_LINE_LIMIT])
        if event.slice is None:
            return
        if isinstance(event, SliceReady):
            self._ready.add(str(event.slice))
            glog("I", f"*** {len(self._ready)}/{self._wanted} Pathways Slices Now Ready")
        elif isinstance(event, PhysicalSliceLost):
            self._ready.discard(str(event.slice))


def _restore(
    options: ResourceManagerOptions, clock: SteadyClock, recording: Recording
) -> tuple[ResourceManagerCore, Store]:
    """Creates the core, from the state file if there is one."""
    rows = options.history_rows
    store, damage = open_store(
        options.state_file or _IN_MEMORY,
        first_start=options.first_start,
        discard_newer=options.discard_state,
        max_rows=rows if options.state_file else min(rows, _ROWS_IN_MEMORY),
        max_age_s=options.history_days * 86_400,
    )
    if damage:
        glog("E", damage)
    if (ended := store.history.ended) is not None:
        clock.go_on_from(ended)
    why = "" if store.restored.grants else "no tenant was known"
    store.note(Decision(time=clock(), kind=DecisionKind.STARTED, reason=damage or why))
    idle_release_s, idle_warning_s, _ = options.idle_times
    config = RmConfig(
        slices=options.slices(),
        spares=options.num_spares,
        hung_after_s=options.hung_after_s,
        tenant_ttl_s=options.tenant_ttl_s,
        recovering_s=options.recovering_s,
        starting_grace_s=timeouts.SLICES_AT_START.s,
        preemption_grace_s=options.preemption_grace_s,
        aging_s=options.aging_s or None,
        idle_release_s=idle_release_s,
        idle_warning_s=idle_warning_s,
        limits=options.limits(),
        users_verified=bool(options.identity_audience),
        executors=options.has_executors,
    )
    now = clock()
    recording.begin(config, store.restored, now)
    return ResourceManagerCore(config, store.restored, now), store


async def _make_authority(
    options: ResourceManagerOptions,
    on_fatal: Callable[[str], None],
    check_term: Callable[[], None],
    stack: contextlib.AsyncExitStack,
) -> Authority:
    """Creates the authority on the running event loop; the stack closes it and its recording."""
    clock = SteadyClock()
    recording = Recording(options.record_events)
    stack.callback(recording.close)
    # In a thread: a large file on a slow volume takes longer than the Lease may go unrenewed.
    core, store = await asyncio.to_thread(_restore, options, clock, recording)
    authority = Authority(
        core,
        store,
        WorkerStreams(
            options.beat_interval_s,
            ExecutorDirectory(enabled=options.has_executors),
            device_memory_bytes=options.proxy_memory_limit_bytes or 0,
        ),
        TenantStreams(
            options.tenant_ttl_s,
            options.proxy_memory_limit_bytes or 0,
            activity_s=options.idle_times[-1],
            counters_s=options.proxy_counters_s,
            takes_losses=options.has_executors,
        ),
        clock=clock,
        watcher_limit=options.watcher_limit,
        on_event=_SliceCounter(sum(options.instance_count)),
        on_fatal=on_fatal,
        recording=recording,
        check_term=check_term,
    )
    stack.callback(authority.close)
    return authority


def _make_server(
    options: ResourceManagerOptions,
    guard: grpc.aio.ServerInterceptor | None,
    token: str | None,
    tenant_token: str | None,
) -> grpc.aio.Server:
    guards = [] if guard is None else [guard]
    if token is not None:
        guards.append(
            TokenInterceptor(
                token,
                open_methods=_PROBES,
                lesser={} if tenant_token is None else {tenant_token: _TENANTS_METHODS},
            )
        )
    return grpc.aio.server(
        interceptors=[*guards, Admission(options, exempt=_PROBES)],
        options=(
            *SERVER_OPTIONS,
            *_LIMITS,
            *options.connection_options(),
            ("grpc.max_concurrent_streams", options.max_streams_per_connection),
        ),
    )


async def _serve_metrics(
    options: ResourceManagerOptions,
    authority: Authority,
    service: ResourceManagerService,
    token: str | None,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Serves metrics if a port is set; the stack stops the server."""
    if options.metrics_port is None:
        return
    from shared_pathways_service.metrics.http_server import serve_metrics  # noqa: PLC0415 - aiohttp

    serving = await serve_metrics(
        lambda: families(authority, service.proxy_counters, service.executor_times),
        address=options.metrics_address,
        port=options.metrics_port,
        token=token,
    )
    stack.push_async_callback(serving.close)
    glog("I", f"Metrics at {serving.url}")


async def _hold_lease(
    options: ResourceManagerOptions, stop: asyncio.Future[int], stack: contextlib.AsyncExitStack
) -> Callable[[], None]:
    """Waits for the Lease, if there is one; returns what ends this process once it is lost."""
    if not options.lease:
        return lambda: None
    from shared_pathways_service.servers.resource_manager.lease.head_lease import (  # noqa: PLC0415 - aiohttp
        HeadLease,
    )

    timing = Timing.of(options.lease_duration_s)
    lease = HeadLease(options.lease, Path(options.service_account_directory), timing)
    await lease.hold_until(stop, stack)
    return lease.check


def _verification(
    options: ResourceManagerOptions, authority: Authority, stack: contextlib.AsyncExitStack
) -> dict[str, Verify]:
    """Returns the argument of the service that makes it verify users, if it is to do so."""
    if not options.identity_audience:
        return {}
    from shared_pathways_service.kube.api import KubeApi  # noqa: PLC0415 - aiohttp
    from shared_pathways_service.servers.resource_manager.user_verification import (  # noqa: PLC0415
        UserVerifier,
    )

    access = in_cluster_access(Path(options.service_account_directory))
    api = KubeApi(access)
    stack.push_async_callback(api.close)
    verifier = UserVerifier(
        api,
        access.namespace,
        options.identity_audience,
        known=authority.request_of,
        patience_s=options.request_timeout_s,
    )
    return {"verify": verifier.verified}


async def _serve(options: ResourceManagerOptions, guard: grpc.aio.ServerInterceptor | None) -> int:
    """Serves until a stop signal; returns the exit code."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not stop.done():
            stop.set_result(code)

    def fatal(message: str) -> None:
        glog("F", message)
        end(1)

    async with contextlib.AsyncExitStack() as stack:
        for sig in STOP_SIGNALS:
            loop.add_signal_handler(sig, end, options.stop_exit_code)
        if options.parent_pid:
            watch = exit_with_parent(options.parent_pid, _stop_self)
            if watch is not None:
                stack.callback(watch.close)
        check_term = await _hold_lease(options, stop, stack)
        if stop.done():
            return stop.result()
        authority = await _make_authority(options, fatal, check_term, stack)
        if stop.done():
            # The history of this start could not be written: do not report the server as ready.
            return stop.result()
        token = read_token(options.token_file)
        tenant_token = read_token(options.tenant_token_file, field="--tenant_token_file")
        server = _make_server(options, guard, token, tenant_token)
        stack.push_async_callback(stop_server, server)
        # Last in, first out: streams that end with the server do not count as losses of peers.
        stack.callback(authority.close)
        service = ResourceManagerService(
            authority,
            tuple(options.slices()),
            hello_s=options.request_timeout_s,
            **_verification(options, authority, stack),
        )
        pb_grpc.add_ResourceManagerServicer_to_server(
            cast("pb_grpc.ResourceManagerServicer", service), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
        listening = listen(
            server,
            server_port=options.server_port,
            server_socket=options.server_socket,
            default_port=RESOURCE_MANAGER_PORT,
            bind_address=options.bind_address,
        )
        await server.start()
        await _serve_metrics(options, authority, service, token, stack)
        glog("I", f"Pathways Server serving on {listening.shown}")
        report_ready(options.ready_fd, port=listening.port, socket=listening.socket)
        code = await stop
        glog("I", "Pathways Server stopping")
        return code


def main(argv: Sequence[str], *, guard: grpc.aio.ServerInterceptor | None = None) -> int:
    """Runs the resource manager; returns its exit code. `guard` runs before other interceptors."""
    options = parse_or_exit(ResourceManagerOptions, "resource_manager", argv)
    send_logging_to_glog(log_format=options.log_format)
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    # A service with thousands of workers has as many connections.
    descriptors.raise_limit()
    try:
        return asyncio.run(_serve(options, guard))
    except InvalidRequestError as error:
        glog("E", str(error))
        return 2
    except SharedPathwaysError as error:
        glog("E", str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
