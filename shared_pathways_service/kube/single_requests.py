"""Sends one request without retries: adds credentials and translates errors."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import socket
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.errors import (
    CONNECT_VERB,
    ApiError,
    ApiUnreachable,
    error_of_answer,
)
from shared_pathways_service.kube.http_proxies import NetworkProxy, proxy_of_environment
from shared_pathways_service.kube.paths import Target, target_of
from shared_pathways_service.kube.proxied_connections import (
    cause_of,
    new_connector,
    proxy_options,
)
from shared_pathways_service.kube.retry_rules import Failure, is_final
from shared_pathways_service.kube.tls import hint_for
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["Transport"]

#: Seconds for which a report of readiness is valid, and for getting it.
_READY_FOR_S = 30.0
_MAX_CONNECTIONS = 100
#: What to do about an API server of an unknown authority.
_UNTRUSTED = (
    "its authority must be certificate-authority-data of the kubeconfig; if that is empty, one of "
    "the system's or of REQUESTS_CA_BUNDLE, or else of SSL_CERT_FILE"
)
#: TCP keepalive: idle seconds before the first probe, seconds between probes, number of probes.
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Transport:
    """Connections to one API server. Belongs to the event loop that first uses it.

    Attributes:
      ahead_s: Seconds by which the server's clock is ahead of this machine's, by its last answer.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self.ahead_s = 0.0
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self._proxy: NetworkProxy | None = None
        self._broke_at = self._back_at = self._ready_at = self._ready_until = float("-inf")
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    async def close(self) -> None:
        """Closes all connections and the source of tokens."""
        await self._access.tokens.close()
        if self._session is None:
            return
        await self._session.close()
        # A connection that was aborted before still sends its TLS close; do not wait for that.
        for made in self._open_sockets():
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(TimeoutError):
            async with within(timeouts.API_CLOSE):
                # The event loop notices their end, and closes them.
                while self._open_sockets():  # noqa: ASYNC110
                    await asyncio.sleep(0)

    def _open_sockets(self) -> list[socket.socket]:
        return [made for made in self._sockets if made.fileno() >= 0]

    @contextlib.asynccontextmanager
    async def answer(
        self,
        target: Target,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: str | None = None,
        content_type: str = "",
        read_within_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request, and yields a successful answer.

        Translates errors, also those while the caller reads the answer, into those of
        `KubeApi.request`. Without `read_within_s`, in seconds, the answer may be endless.
        """
        timeout = aiohttp.ClientTimeout(total=read_within_s, sock_connect=timeouts.API_CONNECT.s)
        headers = {"Content-Type": content_type} if content_type else {}
        with self._translated(target):
            sent = self._send(
                target, method, path, params=params, data=data, headers=headers, timeout=timeout
            )
            async with await sent as response:
                yield response

    async def upgrade(
        self,
        target: Target,
        path: str,
        *,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
    ) -> aiohttp.ClientResponse:
        """Requests a protocol upgrade; arguments and errors are those of `KubeApi.upgrade`."""
        # For connecting only: the connection itself lasts.
        timeout = aiohttp.ClientTimeout(sock_connect=timeouts.API_CONNECT.s)
        with self._translated(target):
            return await self._send(
                target, "GET", path, params=params, headers=headers, timeout=timeout
            )

    async def _send(
        self,
        target: Target,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
        data: str | None = None,
    ) -> aiohttp.ClientResponse:
        """Sends a request, once more with a new token; raises unless it succeeds."""
        for is_last in (False, True):
            authorization = await self._authorization(target)
            response = await self._http().request(
                method,
                self._access.server + path,
                params=params,
                data=data,
                headers=[*self._access.headers, *authorization.items(), *headers.items()],
                timeout=timeout,
                allow_redirects=False,
                **self._way(),
            )
            # (A gateway may answer for a server that is still away.)
            if self._back_at < self._broke_at and is_final(Failure(status=response.status)):
                self._back_at = time.monotonic()
            if response.status < 300:
                self._compare_clocks(response)
                return response
            async with response:
                if response.status != 401 or is_last:
                    raise await _error_of(target, response)
                # Not reused: a new client certificate takes effect on new connections only.
                response.close()
            self._access.tokens.refused(authorization.get("Authorization", ""))
        raise AssertionError("the last try returns or raises")

    def _compare_clocks(self, response: aiohttp.ClientResponse) -> None:
        with contextlib.suppress(KeyError, ValueError):
            date = email.utils.parsedate_to_datetime(response.headers["Date"])
            self.ahead_s = date.timestamp() - time.time()

    async def is_settling(self, error: SharedPathwaysError, asked_at: float) -> bool:
        """Whether the refusal may come from a server that has just started.

        Such a server answers before it knows all users, rules and kinds: with 403 to permitted
        requests, and with 404 without a reason for a custom resource (observed for 1 s; longer on a
        busy machine). So this asks whether the server is ready; a refusal of a request from
        before it was ready does not count.
        A 401 is only retried after the server was away: renewing credentials each time may cost
        seconds of a credential plug-in.

        Args:
          error: The refusal.
          asked_at: `time.monotonic` before the request was sent.
        """
        now = time.monotonic()
        if isinstance(error, AccessDenied):
            is_such = error.verb != CONNECT_VERB or self._has_been_away()
        else:
            is_such = isinstance(error, ApiError) and error.status == 404 and not error.reason
        if not is_such:
            return False
        if now < self._ready_until:
            return asked_at < self._ready_at
        if await self._is_ready():
            self._ready_at = time.monotonic()
            self._ready_until = self._ready_at + _READY_FOR_S
        return True

    async def _is_ready(self) -> bool:
        """Asks the server for its readiness; a server that refuses to answer counts as ready.

        Except for a while after it was away: it needs its rules to permit the question, and to know
        that the question goes before others.
        """
        try:
            async with self.answer(
                target_of("GET", "/readyz", {}),
                "GET",
                "/readyz",
                read_within_s=timeouts.API_READY.s,
            ):
                return True
        except ApiError as error:
            return is_final(Failure(status=error.status))
        except ApiUnreachable:
            return False
        except AccessDenied:
            return not self._has_been_away()

    def _has_been_away(self) -> bool:
        """Whether the server was away until a while ago.

        From its first answer on, which may come a minute after the first connection if it is busy.
        """
        last = max(self._broke_at, self._back_at)
        return time.monotonic() - last < timeouts.API_SETTLING.s

    @contextlib.contextmanager
    def _translated(self, target: Target) -> Iterator[None]:
        """Translates every failure of a connection into `ApiUnreachable`."""
        try:
            yield
        except (aiohttp.ClientError, OSError, EOFError) as error:
            raise self.unreachable(
                target,
                cause_of(error, self._proxy),
                is_final=isinstance(error, ssl.SSLCertVerificationError),
                hint=self._hint(error),
            ) from error

    def timed_out(
        self, target: Target, what: str, within_s: float, earlier: str = ""
    ) -> ApiUnreachable:
        """Returns the error for a request that timed out, also while it waited for a token.

        `earlier` is why an earlier try failed, if one did.
        """
        tokens = self._access.tokens
        also = f"; an earlier try: {earlier}" if earlier else ""
        if tokens.awaited_s is None:
            way = f", through the proxy {self._proxy}" if self._proxy else ""
            return self.unreachable(target, f"no {what} within {within_s:g} s{way}{also}")
        issuer = tokens.of or "the source of credentials"
        cause = f"{issuer} has not answered for {tokens.awaited_s:.0f} s{also}"
        return ApiUnreachable(
            f"cannot {target}: no credentials yet: {cause}",
            server=self._access.server,
            cause=cause,
        )

    def unreachable(
        self, target: Target, cause: str, *, is_final: bool = False, hint: str = ""
    ) -> ApiUnreachable:
        """Returns the error for a request without an answer, and records the failure's time."""
        self._broke_at, self._ready_until = time.monotonic(), float("-inf")
        server = self._access.server
        return ApiUnreachable(
            f"cannot {target}: no answer from the API server at {server}: {cause}",
            server=server,
            cause=cause,
            is_final=is_final,
            hint=hint or self._hint(),
        )

    def _hint(self, error: BaseException | None = None) -> str:
        if known := hint_for(error, unknown=_UNTRUSTED):
            return known
        if self._proxy is None and isinstance(error, aiohttp.ClientConnectorDNSError):
            return "connect to the network, e.g. the VPN, that knows it, or name a proxy that does"
        if self._proxy is None or self._access.proxy is not None:
            return ""
        host = urlsplit(self._access.server).hostname
        return f"if {host} needs no proxy, add it to NO_PROXY"

    async def _authorization(self, target: Target) -> dict[str, str]:
        try:
            header = await self._access.tokens.header()
            return {"Authorization": header} if header else {}
        except AccessDenied as error:
            if not self._access.tokens.has_worked:
                raise
            # The credentials worked before: probably the identity provider is unreachable, as
            # by a plug-in on a laptop without a network.
            raise ApiUnreachable(
                f"cannot {target}: {error.message}",
                server=self._access.server,
                cause=error.message,
                hint=error.hint,
            ) from error

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._proxy = self._access.proxy
            if self._proxy is None and not self._access.is_direct:
                self._proxy = proxy_of_environment(self._access.server)
            self._session = aiohttp.ClientSession(
                connector=new_connector(
                    self._proxy, limit=_MAX_CONNECTIONS, socket_factory=self._new_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _new_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Creates a socket that detects a silently lost peer within a minute."""
        made = socket.socket(*info[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):  # not every platform has all of them
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sockets.add(made)
        return made

    def _way(self) -> dict[str, Any]:
        way: dict[str, Any] = {"ssl": self._access.tls or True, **proxy_options(self._proxy)}
        if self._access.server_name:
            way["server_hostname"] = self._access.server_name
        return way


async def _error_of(target: Target, response: aiohttp.ClientResponse) -> SharedPathwaysError:
    text = await response.text(errors="replace")
    try:
        body = json.loads(text)
    except ValueError:
        body = {}  # from an HTTP proxy, not from Kubernetes
    retry_after = response.headers.get("Retry-After", "")
    return error_of_answer(
        target,
        response.status,
        body if isinstance(body, dict) else {},
        retry_after_s=float(retry_after) if retry_after.isdecimal() else None,
    )
