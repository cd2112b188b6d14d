"""The proxy as a process: flags, limits, start, readiness, end."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import json
import os
import resource
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shared_pathways_service.constants import PROXY_PORT
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError, VersionSkew
from shared_pathways_service.flags.parsing import flag, parse_or_exit
from shared_pathways_service.protocol.auth import read_token
from shared_pathways_service.runtime import allocator, descriptors
from shared_pathways_service.runtime.glog import glog, send_logging_to_glog
from shared_pathways_service.servers.proxy.exits import Ending
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.proxy.link_server import LinkOptions, LinkServer
from shared_pathways_service.servers.serving.last_requests_file import LastRequests
from shared_pathways_service.servers.serving.process import (
    StopSignals,
    exit_with_parent,
    report_ready,
)
from shared_pathways_service.servers.xla.xla_flags import allow_long_callbacks, use_xla_flags

if TYPE_CHECKING:
    from shared_pathways_service.events.proxy import ProxyReport
    from shared_pathways_service.protocol.proxy_status_pb2 import GetCountersResponse
    from shared_pathways_service.protocol.resource_manager_pb2 import TenantActivity
    from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache
    from shared_pathways_service.servers.proxy.engine.engine import Engine
    from shared_pathways_service.servers.proxy.rm_link import ResourceManagerLink
    from shared_pathways_service.servers.proxy.session.service import ProxyService

__all__ = ["main"]

_STANDBY = "--standby"
#: The bytes that the heap keeps for the next transfer.
_KEPT_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class _StandbyOptions:
    parent_pid: int = flag(0, help="End with the process of this pid; 0: none.")


def main(argv: list[str], *, make_service: Callable[..., ProxyService] | None = None) -> NoReturn:
    """Runs the proxy, and ends the process.

    With ``--standby``, and optionally ``--parent_pid``, it first loads all slow modules, then reads
    its real command line from standard input: one line, a JSON list of strings. If the input ends
    instead, it exits.

    Args:
      argv: The arguments, without the program's name.
      make_service: Makes another service from the arguments of `ProxyService`; None: that class.
    """
    # Signals before anything slow, so that a proxy that still loads can be stopped.
    stop_signals = StopSignals(lambda: _exit(0))
    send_logging_to_glog()
    # If XLA crashes, the log shows the call; only that thread's stack, as logs are short.
    faulthandler.enable(all_threads=False)
    if argv[:1] == [_STANDBY]:
        argv = _stand_by(parse_or_exit(_StandbyOptions, "proxy --standby", argv[1:]))
    options = parse_or_exit(ProxyServerOptions, "proxy", argv)
    send_logging_to_glog(log_format=options.log_format)
    descriptors.raise_limit()
    try:
        _exit(_serve(options, stop_signals, make_service))
    except SharedPathwaysError as error:
        # With a report, its starter learns it as well.
        ending = Ending(options.exit_report)
        ending.decide(2 if isinstance(error, InvalidRequestError) else 1, str(error))
        _exit(ending.code)


def _stand_by(options: _StandbyOptions) -> list[str]:
    with contextlib.ExitStack() as stack:
        # Before slow imports: if the supervisor dies, a loading proxy ends as well.
        _watch_parent(options.parent_pid, lambda: _exit(0), stack)
        return _load_and_read()


def _load_and_read() -> list[str]:
    from shared_pathways_service.servers.xla.xla_internals import check  # noqa: PLC0415

    try:
        check()
    except VersionSkew as skew:
        glog("E", str(skew))
        _exit(1)
    # Imported only to be loaded: JAX takes most of the start.
    from shared_pathways_service.servers.proxy import rm_link  # noqa: F401, PLC0415
    from shared_pathways_service.servers.proxy.engine import engine  # noqa: F401, PLC0415
    from shared_pathways_service.servers.proxy.transport import grpc_transport  # noqa: PLC0415
    from shared_pathways_service.servers.xla import xla  # noqa: PLC0415

    xla.warm_up()
    grpc_transport.warm_up()
    line = sys.stdin.readline()
    if not line:
        _exit(0)
    try:
        argv = json.loads(line)
    except ValueError:
        argv = None
    # Nothing inherits it, and its writer may wait for it to be closed.
    sys.stdin.close()
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        glog("E", "--standby: standard input is not a JSON list of strings")
        _exit(2)
    return argv


def _serve(
    options: ProxyServerOptions,
    stop_signals: StopSignals,
    make_service: Callable[..., ProxyService] | None,
) -> int:
    """Serves until there is a reason to end; returns the exit code."""
    ending = Ending(options.exit_report)
    stop_signals.on_stop = lambda: ending.decide(0, "it got a signal to stop")
    with contextlib.ExitStack() as stack:
        _watch_parent(options.parent_pid, lambda: ending.decide(0, "the parent has ended"), stack)
        _keep_memory()
        token = read_token(options.token_file)
        rm_token = read_token(
            options.resource_manager_token_file, field="--resource_manager_token_file"
        )
        xla_flags = _prepare_process(options)
        # Only now: XLA reads its flags once.
        from shared_pathways_service.servers.proxy.activity import Activity  # noqa: PLC0415
        from shared_pathways_service.servers.proxy.session.service import ProxyService  # noqa: PLC0415
        from shared_pathways_service.servers.proxy.transport.grpc_transport import GrpcTransport  # noqa: PLC0415
        from shared_pathways_service.servers.proxy.watchdog import Watchdog  # noqa: PLC0415

        engine = _make_engine(options, xla_flags, stack)
        watchdog = Watchdog(ending, options.lost_program_grace_s)
        stack.callback(watchdog.close)
        engine.slices.add_listener(watchdog.on_change)
        link_server = _link_server(options, stack)
        service = (make_service or ProxyService)(
            engine,
            token=token,
            large_transfer_dir=Path(options.large_transfer_dir)
            if options.large_transfer_dir
            else None,
            on_session_end=watchdog.on_session_end,
            limits=options.limits(),
            more_counters=link_server.families if link_server else list,
        )
        transport = GrpcTransport(service, options.transport, options)
        stack.callback(transport.stop)
        listening = transport.start(
            server_port=options.server_port,
            server_socket=options.server_socket,
            default_port=PROXY_PORT,
            bind_address=options.bind_address,
        )
        glog("I", f"Pathways Proxy serving on {listening.shown}")
        if link_server is not None:
            link_server.start(listening.address)
        # (What is loaded stays: a full collection would look through it in the midst of programs.)
        gc.freeze()
        report_ready(options.ready_fd, port=listening.port, socket=listening.socket)
        activity = Activity(engine, service, transport.transfers)
        reports = (activity.look, lambda: _counters(engine, service))
        link = _link(options, engine, ending, rm_token, listening.address, reports=reports)
        if link is not None:
            stack.callback(link.close, "the proxy ends")
            link.start()
        code = ending.wait()
        glog("I", "Pathways Proxy stopping")
        return code


def _link_server(options: ProxyServerOptions, stack: contextlib.ExitStack) -> LinkServer | None:
    """Makes the far end of links; the stack closes it after the transport, for its last bytes."""
    if not options.link_port:
        return None
    link_server = LinkServer(
        LinkOptions(
            port=options.link_port,
            bind_address=options.bind_address,
            token_file=options.token_file,
            keep_s=options.link_keep_s,
        )
    )
    stack.callback(link_server.close)
    return link_server


def _watch_parent(pid: int, on_end: Callable[[], None], stack: contextlib.ExitStack) -> None:
    watch = exit_with_parent(pid, on_end) if pid else None
    if watch is not None:
        stack.callback(watch.close)


def _prepare_process(options: ProxyServerOptions) -> list[tuple[str, str]]:
    """Sets what XLA reads once, and this process's limits; returns the flags for compilations."""
    allow_long_callbacks()
    xla_flags = use_xla_flags(options.xla)
    if options.address_space_limit_bytes:
        limit = options.address_space_limit_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if options.sidecar_name:
        glog(
            "W",
            f"--sidecar_name={options.sidecar_name}: ignored, see --colocated_python",
        )
    from shared_pathways_service.servers.xla.xla_internals import check  # noqa: PLC0415

    check()
    return xla_flags


def _make_engine(
    options: ProxyServerOptions, xla_flags: Sequence[tuple[str, str]], stack: contextlib.ExitStack
) -> Engine:
    """Makes the engine; the stack closes it, and what it uses."""
    from shared_pathways_service.servers.proxy.engine.engine import Engine  # noqa: PLC0415
    from shared_pathways_service.servers.proxy.executors.executors_of_flags import (  # noqa: PLC0415
        named_executors,
        placed_executors,
        platform_of,
    )
    from shared_pathways_service.servers.proxy.ffi_handlers import load_handlers  # noqa: PLC0415
    from shared_pathways_service.servers.proxy.rm_link import log_change  # noqa: PLC0415

    last_requests = LastRequests(options.last_requests_file, options.last_requests_bytes)
    # Closed last, as a normal end removes the file; a crash does not reach this.
    stack.callback(last_requests.take_back)
    cache = _compile_cache(options)
    if cache is not None:
        stack.callback(cache.close)
    engine = Engine(
        options.instance_types(),
        options.device_memory_limit_bytes,
        xla_flags,
        cache,
        last_requests,
        platform=platform_of(options),
        executors=named_executors(options),
        placed_executors=placed_executors(options),
        runs_python=options.colocated_python,
    )
    stack.callback(engine.close)
    engine.open_executors()
    engine.compiler.ffi_names = load_handlers(
        options.ffi_library_dir, options.ffi_targets, options.platform
    )
    engine.slices.add_listener(log_change)
    if not options.resource_manager_address:
        engine.place_locally()  # before clients can connect
    return engine


def _keep_memory() -> None:
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        allocator.keep(_KEPT_BYTES)


def _compile_cache(options: ProxyServerOptions) -> CompileCache | None:
    """Opens the cache of compiled programs; without a usable one there is no cache."""
    from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache  # noqa: PLC0415
    from shared_pathways_service.servers.xla.host_machine import machine_identity  # noqa: PLC0415

    if not options.compile_cache_dir or not options.compile_cache_bytes:
        return None
    identity = machine_identity()
    if identity is None:
        glog(
            "W",
            "Compiled programs are not cached: the system does not report the features of its CPUs",
        )
        return None
    directory = Path(options.compile_cache_dir)
    try:
        return CompileCache(directory, options.compile_cache_bytes, identity)
    except (SharedPathwaysError, OSError) as error:
        glog("W", f"Compiled programs are not cached: {error}")
        return None


def _link(
    options: ProxyServerOptions,
    engine: Engine,
    ending: Ending,
    token: str | None,
    address: str,
    *,
    reports: tuple[Callable[[], TenantActivity], Callable[[], GetCountersResponse]],
) -> ResourceManagerLink | None:
    from shared_pathways_service.protocol import resource_manager_pb2 as pb  # noqa: PLC0415
    from shared_pathways_service.protocol.tenant_requests import message_of  # noqa: PLC0415
    from shared_pathways_service.servers.proxy import rm_link  # noqa: PLC0415
    from shared_pathways_service.servers.proxy.activity import ActivityReporter  # noqa: PLC0415
    from shared_pathways_service.servers.proxy.counters_reporter import CountersReporter  # noqa: PLC0415

    if not options.resource_manager_address:
        return None
    request = options.tenant_request(default_name=f"proxy-{uuid.uuid4().hex[:12]}")
    hello = pb.TenantHello(
        tenant=message_of(request), incarnation=str(uuid.uuid4()), pid=os.getpid(), address=address
    )
    placed = engine.placed_executors
    counters = CountersReporter(reports[1])
    link = rm_link.ResourceManagerLink(
        options.resource_manager_address,
        hello,
        engine.slices,
        ending,
        token,
        on_memory_limit=lambda limit: engine.memory.lower(
            limit, "--proxy_memory_limit_bytes of the resource manager"
        ),
        reporter=ActivityReporter(reports[0]),
        identity=lambda: _identity_token(options.identity_token_file),
        counters=counters,
        on_executors=(lambda _executors: None) if placed is None else placed.serve,
        losses=engine.losses,
    )
    engine.memory.on_near_limit = link.report
    if placed is not None:

        def report(event: ProxyReport) -> None:
            link.report(event)
            # (The status of the resource manager follows its events.)
            counters.report_now()

        placed.times.on_change = report
    return link


def _counters(engine: Engine, service: ProxyService) -> GetCountersResponse:
    """Returns the report for the resource manager: counters, and times on executors."""
    found = service.counters()
    if engine.placed_executors is not None:
        found.executor_times.CopyFrom(engine.placed_executors.times.message())
    return found


def _identity_token(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        # The resource manager's refusal is the better message, or it needs none.
        glog("W", f"No token in {path}: {error}")
        return ""


def _exit(code: int) -> NoReturn:
    # Threads may be stuck in a program that XLA cannot stop: do not wait for them.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
