"""Serves the calls by gRPC over raw bytes, with one of two servers."""

from __future__ import annotations

from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.grpc_core import core_check
from shared_pathways_service.servers.grpc_core.core_server import CoreServer
from shared_pathways_service.servers.proxy.session.service import ProxyService
from shared_pathways_service.servers.proxy.transport.calls import Calls
from shared_pathways_service.servers.proxy.transport.grpc_core import core_calls
from shared_pathways_service.servers.proxy.transport.public_server import PublicServer
from shared_pathways_service.servers.proxy.transport.transfers import Transfers
from shared_pathways_service.servers.serving.call_threads import CallThreads
from shared_pathways_service.servers.serving.connections import ConnectionOptions
from shared_pathways_service.servers.serving.listening import SERVER_OPTIONS, Listening, listen

__all__ = ["GrpcTransport", "warm_up"]

#: Threads for sessions beyond the limit, which are refused.
_SPARE_THREADS = 16
#: Threads for calls that are answered at once: few work, and those with a late request end soon.
_PLAIN_THREADS = 64
#: Calls that wait to be accepted, which happens at once (those that wait for a thread are counted
#: by --max_calls), and their longest wait in seconds: one step with many arguments uploads
#: thousands of buffers at once, and gRPC by default refuses from 1,000 on (RST_STREAM, error 7),
#: which the client takes for the end of its session. So does a limit of streams: a client counts
#: one as ended before its server does.
_PATIENCE = (
    ("grpc.server.max_pending_requests", 1 << 15),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 16),
    ("grpc.server_max_unrequested_time_in_server", 3600),
)


class GrpcTransport:
    """A gRPC server for one `ProxyService`; `kind` is one of `TRANSPORTS`."""

    def __init__(
        self,
        service: ProxyService,
        kind: str = "auto",
        connections: ConnectionOptions | None = None,
    ) -> None:
        # Calls that wait for other threads delay no session, which sends its token at once.
        self._sessions = CallThreads(service.limits.sessions + _SPARE_THREADS, "call")
        self._plain = CallThreads(_PLAIN_THREADS, "plain")
        self._callbacks = CallThreads(service.limits.sessions + _SPARE_THREADS, "callbacks")
        self._calls = Calls(service, self._plain)
        limits = service.limits
        options = (
            *SERVER_OPTIONS,
            *(connections or ConnectionOptions()).connection_options(),
            # Of a server, not of a method: calls without a token may be as long.
            ("grpc.max_receive_message_length", self._calls.longest_message),
            ("grpc.max_send_message_length", -1),
            *_PATIENCE,
        )
        self._server: CoreServer | PublicServer
        if core_check.use_core(kind):
            self._server = CoreServer(
                options,
                core_calls.routes(self._calls, self._sessions, self._plain, self._callbacks),
                self._plain,
                max_calls=limits.calls,
                slow_reader_s=limits.slow_reader_s,
            )
        else:
            glog(
                "I",
                "Serving with grpcio's public API: small requests take two or three times as long",
            )
            self._server = PublicServer(
                options, self._calls, self._sessions, self._plain, self._callbacks
            )

    @property
    def transfers(self) -> Transfers:
        """The uploads and downloads under way."""
        return self._calls.transfers

    def start(
        self, *, server_port: int | None, server_socket: str, default_port: int, bind_address: str
    ) -> Listening:
        """Binds and serves; see `listen` for the arguments."""
        listening = listen(
            self._server,
            server_port=server_port,
            server_socket=server_socket,
            default_port=default_port,
            bind_address=bind_address,
        )
        self._server.start()
        return listening

    def stop(self) -> None:
        """Ends every call and the server, without waiting for its threads."""
        self._server.stop()
        self._calls.close()
        for pool in (self._sessions, self._plain, self._callbacks):
            pool.shutdown(wait=False, cancel_futures=True)


def warm_up() -> None:
    """Tries grpcio's core before it is needed, as that takes some milliseconds."""
    core_check.fault()
