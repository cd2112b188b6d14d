"""An HTTP proxy on loopback, whose connections to a cluster's API server can be cut."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
from collections.abc import Iterator

from shared_pathways_service.kube.http_proxies import (
    LINK_VARIABLE,
    NetworkProxy,
    proxy_of_environment,
)
from shared_pathways_service.kube.socks import SocksError, connect_steps
from shared_pathways_service.patience import timeouts

__all__ = ["CuttableLink"]

_MAX_HEAD = 65536


class CuttableLink:
    """An HTTP proxy that supports only CONNECT, and so forwards only encrypted bytes.

    It uses the proxy of this process's environment as a client would. `close` ends it with all its
    connections.
    """

    def __init__(self) -> None:
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        link = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                link._serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="sps-verify-link", daemon=True
        )
        self._thread.start()

    @property
    def environment(self) -> dict[str, str | None]:
        """The variable by which a client uses this link, also to a server on loopback."""
        port = self._server.server_address[1]
        return {LINK_VARIABLE: f"http://127.0.0.1:{port}"}

    def cut(self) -> int:
        """Breaks all connections, not later ones; returns the number of broken ones."""
        with self._lock:
            broken = len(self._sockets) // 2
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        return broken

    def close(self) -> None:
        """Ends the link."""
        self._server.shutdown()
        self.cut()
        self._server.server_close()
        self._thread.join()

    def _serve(self, client: socket.socket) -> None:
        target = _target(client)
        if target is None:
            return
        try:
            server = _dial(*target)
        except OSError:
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        with server, self._known(client, server):
            server.settimeout(None)
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _forward(client, server)

    @contextlib.contextmanager
    def _known(self, *sockets: socket.socket) -> Iterator[None]:
        with self._lock:
            self._sockets.update(sockets)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.difference_update(sockets)


def _target(client: socket.socket) -> tuple[str, int] | None:
    """Reads the head of a request; returns its target, or None if it is not a CONNECT."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD:
        if not (data := client.recv(4096)):
            return None
        head += data
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
    if len(words) != 3 or words[0] != "CONNECT":
        client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
        return None
    host, _, port = words[1].rpartition(":")
    return host.strip("[]"), int(port)


def _dial(host: str, port: int) -> socket.socket:
    """Connects to a target, through the proxy that the environment names for it.

    Raises:
      OSError: The target or the proxy cannot be reached, or the proxy refused the connection.
    """
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    proxy = proxy_of_environment(f"https://{place}")
    if proxy is None:
        return socket.create_connection((host, port), timeouts.VERIFY_CONNECT.s)
    with contextlib.ExitStack() as stack:
        server = socket.create_connection((proxy.host, proxy.port), timeouts.VERIFY_CONNECT.s)
        stack.callback(server.close)
        if proxy.scheme == "https":
            raise ConnectionError(f"sps verify cannot use {proxy}")
        if proxy.is_socks:
            _request_socks(server, proxy, host, port)
        else:
            _request_tunnel(server, proxy, place)
        stack.pop_all()
    return server


def _request_socks(server: socket.socket, proxy: NetworkProxy, host: str, port: int) -> None:
    """Requests a connection to a target from a SOCKS proxy; raises as `_request_tunnel` does."""
    steps = connect_steps(host, port, user=proxy.user, password=proxy.password)
    try:
        data, size = next(steps)
        while True:
            server.sendall(data)
            received = b""
            while len(received) < size:
                if not (more := server.recv(size - len(received))):
                    raise ConnectionError(f"the proxy {proxy.host} did not answer")
                received += more
            data, size = steps.send(received)
    except StopIteration:
        return
    except SocksError as error:
        raise ConnectionError(f"the proxy {proxy.host} {error}") from error


def _request_tunnel(server: socket.socket, proxy: NetworkProxy, target: str) -> None:
    """Requests a connection to a target from an HTTP proxy.

    Raises:
      OSError: The proxy refused the request, or closed the connection.
    """
    head = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    head += [f"{name}: {value}" for name, value in proxy.headers.items()]
    server.sendall("\r\n".join([*head, "", ""]).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        # Byte by byte, because data of the target may follow the head.
        if len(answer) > _MAX_HEAD or not (data := server.recv(1)):
            raise ConnectionError(f"the proxy {proxy.host} did not answer")
        answer += data
    words = answer.split(b"\r\n", 1)[0].decode("latin-1").split()
    if words[1:2] != ["200"]:
        raise ConnectionError(f"the proxy {proxy.host} answered {' '.join(words)}")


def _forward(one: socket.socket, other: socket.socket) -> None:
    """Forwards bytes in both directions until one side ends."""
    across = {one: other, other: one}
    with contextlib.suppress(OSError):
        while True:
            for source in select.select([one, other], [], [])[0]:
                if not (data := source.recv(65536)):
                    return
                across[source].sendall(data)
