"""Requests to an API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable, error_of_answer
from shared_pathways_service.kube.paths import Target, target_of

__all__ = ["MERGE_PATCH", "SESSION_LABEL", "KubeApi"]

MERGE_PATCH = "application/merge-patch+json"
#: What bears it with our own session's id was created by us.
SESSION_LABEL = "sps.dev/session"

_REQUEST_S = 30.0
_CONNECT_S = 10.0
#: One try of several: an answer that a dead connection holds up leaves time for another one.
_TRY_S = 15.0
#: Bytes of a line of a log that are kept; a longer one is cut.
_LINE_BYTES = 1 << 20
#: Bytes of a WebSocket message that are taken.
_MESSAGE_BYTES = 16 << 20
_MAX_CONNECTIONS = 64


class KubeApi:
    """One API server, as one user. Use it in one event loop, and close it there.

    Args:
      access: The way to it.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection, those of open streams and WebSockets included."""
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = _REQUEST_S,
    ) -> dict[str, Any]:
        """Sends a request, again where that may help, and returns the answer.

        Args:
          method: Of HTTP. A ``POST`` must be one that does no harm when it is done twice, as a
            review is; for objects there is `create`.
          path: See `paths`.
          body: A JSON object.
          params: Of the query.
          content_type: Of the body.
          timeout_s: For all tries together.

        Raises:
          AccessDenied: 401 or 403.
          ApiError: Another answer that is no success.
          ApiUnreachable: No answer in time.
        """
        target = target_of(method, path, params or {})
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if body is not None else {}
        try:
            async with asyncio.timeout(timeout_s):
                async with self._answer(
                    target,
                    method,
                    path,
                    params=params,
                    data=data,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=_TRY_S, sock_connect=_CONNECT_S),
                ) as response:
                    answer: dict[str, Any] = await response.json(content_type=None)
                    return answer
        except TimeoutError as error:
            raise self._unreachable(target, f"no answer within {timeout_s:g} s") from error

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float = _REQUEST_S,
    ) -> dict[str, Any]:
        """Returns an object, or the list of a collection; raises what `request` does."""
        return await self.request("GET", path, params=params, timeout_s=timeout_s)

    async def create(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = _REQUEST_S
    ) -> dict[str, Any]:
        """Creates an object, once.

        When there is one of that name that bears our own `SESSION_LABEL`, an earlier try created
        it: that one is returned. Any other is somebody else's.

        Args:
          path: Of the collection.
          body: The object; its labels should hold `SESSION_LABEL`.
          timeout_s: For all tries together.

        Raises:
          ApiError: Among others ``AlreadyExists``, for somebody else's object.
        """
        try:
            return await self.request("POST", path, body=body, timeout_s=timeout_s)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await self.get(f"{path}/{body['metadata']['name']}", timeout_s=timeout_s)
            ours = body["metadata"].get("labels", {}).get(SESSION_LABEL)
            if ours and found["metadata"].get("labels", {}).get(SESSION_LABEL) == ours:
                return found
            raise

    async def delete(
        self,
        path: str,
        *,
        uid: str,
        grace_s: int | None = None,
        timeout_s: float = _REQUEST_S,
    ) -> bool:
        """Deletes one object, and what it owns in the background.

        Args:
          path: Of the object.
          uid: Of the object: another one of the same name is not touched.
          grace_s: Seconds for a pod to end; None: as it says itself.
          timeout_s: For all tries together.

        Returns:
          False when there is none of that name and UID.
        """
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self.request("DELETE", path, body=options, timeout_s=timeout_s)
        except ApiError as error:
            if error.status == 404 or error.reason == "Conflict":
                return False
            raise
        return True

    async def patch(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = _REQUEST_S
    ) -> dict[str, Any]:
        """Changes fields of an object (a JSON merge patch) and returns it."""
        return await self.request(
            "PATCH", path, body=body, content_type=MERGE_PATCH, timeout_s=timeout_s
        )

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Opens an answer without an end, as of a watch or a log that is followed.

        Reading from it raises `aiohttp.ClientError` or `OSError` when it breaks off.

        Raises:
          AccessDenied: 401 or 403.
          ApiError: Another answer that is no success.
          ApiUnreachable: No answer.
        """
        target = target_of("GET", path, params or {})
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        async with self._answer(target, "GET", path, params=params, timeout=timeout) as response:
            yield response.content

    async def stream_lines(
        self, path: str, *, params: Mapping[str, str] | None = None
    ) -> AsyncIterator[str]:
        """Yields the lines of an answer as they come, until the server ends it.

        Args:
          path: E.g. `paths.pod_log`.
          params: E.g. ``{"follow": "true", "tailLines": "20"}``.

        Raises:
          ApiUnreachable: It broke off; and as `stream` does.
        """
        async with self.stream(path, params=params) as content:
            try:
                async for line in _lines(content):
                    yield line.decode(errors="replace")
            except (aiohttp.ClientError, OSError) as error:
                target = target_of("GET", path, params or {})
                raise self._unreachable(target, str(error)) from error

    async def websocket(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        protocols: Sequence[str],
        heartbeat_s: float | None = None,
        timeout_s: float = _CONNECT_S,
    ) -> aiohttp.ClientWebSocketResponse:
        """Opens a WebSocket; the caller closes it.

        Args:
          path: E.g. `paths.port_forward`.
          params: E.g. ``{"ports": "29000"}``.
          protocols: Sub-protocols offered, e.g. ``("v4.channel.k8s.io",)``.
          heartbeat_s: Seconds between pings; None: none are sent. Half of it later without an
            answer the WebSocket is closed.
          timeout_s: For the handshake.

        Raises:
          AccessDenied: 401 or 403.
          ApiError: Another answer that is no handshake, e.g. 404.
          ApiUnreachable: No answer in time.
        """
        target = target_of("POST", path, params or {})
        try:
            async with asyncio.timeout(timeout_s):
                return await self._handshake(target, path, params, protocols, heartbeat_s)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(target, str(error) or "no answer in time") from error

    async def _handshake(
        self,
        target: Target,
        path: str,
        params: Mapping[str, str] | None,
        protocols: Sequence[str],
        heartbeat_s: float | None,
    ) -> aiohttp.ClientWebSocketResponse:
        for is_last in (False, True):
            header = await self.access.tokens.header()
            try:
                opened: aiohttp.ClientWebSocketResponse = await self._http().ws_connect(
                    self.access.server + path,
                    params=params,
                    protocols=protocols,
                    headers=_authorization(header),
                    heartbeat=heartbeat_s,
                    max_msg_size=_MESSAGE_BYTES,
                    **self._way(),
                )
                return opened
            except aiohttp.WSServerHandshakeError as error:
                if error.status == 401 and not is_last:
                    self.access.tokens.refused(header)
                    continue
                raise error_of_answer(target, error.status, {}) from error
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        target: Target,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - of aiohttp's, by phases
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                for is_last in (False, True):
                    header = await self.access.tokens.header()
                    response = await stack.enter_async_context(
                        self._http().request(
                            method,
                            self.access.server + path,
                            params=params,
                            data=data,
                            headers={**(headers or {}), **_authorization(header)},
                            timeout=timeout,
                            allow_redirects=False,
                            **self._way(),
                        )
                    )
                    if response.status < 300:
                        break
                    if response.status == 401 and not is_last:
                        self.access.tokens.refused(header)
                        continue
                    raise await _error_of(target, response)
            except (aiohttp.ClientError, OSError) as error:
                raise self._unreachable(target, str(error)) from error
            yield response

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=_MAX_CONNECTIONS, socket_factory=_watched_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,
                auto_decompress=True,
            )
        return self._session

    def _way(self) -> dict[str, Any]:
        way: dict[str, Any] = {"ssl": self.access.tls or True}
        if self.access.server_name:
            way["server_hostname"] = self.access.server_name
        if self.access.proxy:
            way["proxy"] = self.access.proxy
        return way

    def _unreachable(self, target: Target, cause: str) -> ApiUnreachable:
        return ApiUnreachable(
            f"cannot {target}: the API server at {self.access.server} does not answer: {cause}",
            server=self.access.server,
            cause=cause,
        )


def _watched_socket(info: tuple[Any, ...]) -> socket.socket:
    """Makes a socket that learns within a minute that the other end is gone without a word."""
    family, kind, protocol = info[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS has other names for some
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _authorization(header: str) -> dict[str, str]:
    return {"Authorization": header} if header else {}


async def _error_of(target: Target, response: aiohttp.ClientResponse) -> SharedPathwaysError:
    text = await response.text(errors="replace")
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    retry_after = response.headers.get("Retry-After", "")
    return error_of_answer(
        target,
        response.status,
        body if isinstance(body, dict) else {},
        retry_after_s=float(retry_after) if retry_after.isdecimal() else None,
    )


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line[:_LINE_BYTES].removesuffix(b"\r")
        rest = rest[:_LINE_BYTES]
    if rest:
        yield rest
