"""Requests to an API server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from typing import Any, Self

import aiohttp

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.kube.paths import target_of
from shared_pathways_service.kube.retry_rules import Failure, retry_delay_s
from shared_pathways_service.kube.single_requests import Transport
from shared_pathways_service.manifests.lifetime import delete_body
from shared_pathways_service.manifests.names import LABEL_SESSION
from shared_pathways_service.patience import timeouts

__all__ = ["KubeApi"]

#: A status that represents any final answer.
_FORBIDDEN = 403
_SETTLING_PAUSE_S = 0.2
#: The longest line in bytes; the rest of a line is dropped.
_LINE_BYTES = 1 << 16


class KubeApi:
    """One API server, as one user. Use it in one event loop, and close it there.

    Attributes:
      access: The server and the user.
      trouble: Why a request is tried again; empty once one has succeeded.
      on_trouble: Called with `trouble` before each further try of a request; must not block.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self.trouble = ""
        self.on_trouble: Callable[[str], object] | None = None
        self._transport = Transport(access)

    @property
    def server_time(self) -> float:
        """Seconds since 1970 by the server's clock, to a second; before an answer, by our own."""
        return time.time() + self._transport.ahead_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection, including those of open streams and WebSockets."""
        await self._transport.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Sends a request, with retries after transient failures, and returns the answer.

        Args:
          method: HTTP method. A ``POST`` must be idempotent, like a review; use `create` for
            objects.
          path: See `paths`.
          body: A JSON object.
          params: Of the query.
          content_type: Of the body.
          timeout_s: Seconds for all tries together; None: `timeouts.API_REQUEST`.

        Raises:
          AccessDenied: 401, or 403 for missing permission.
          ApiError: Another answer that is not a success.
          ApiUnreachable: No answer in time.
        """
        target = target_of(method, path, params or {})
        within_s = timeouts.API_REQUEST.s if timeout_s is None else timeout_s
        data = None if body is None else json.dumps(body)

        async def once() -> dict[str, Any]:
            async with self._transport.answer(
                target,
                method,
                path,
                params=params,
                data=data,
                content_type="" if body is None else content_type,
                read_within_s=min(timeouts.API_TRY.s, within_s),
            ) as response:
                try:
                    answer: dict[str, Any] = await response.json(content_type=None)
                except ValueError as error:
                    cause = "the answer is no JSON; is there a proxy on the way?"
                    raise self._transport.unreachable(target, cause) from error
                return answer

        causes: list[str] = []
        try:
            async with asyncio.timeout(within_s) as limit:
                return await self._until_final(once, method, limit, causes)
        except TimeoutError as error:
            cause = causes[-1] if causes else ""
            raise self._transport.timed_out(target, "answer", within_s, cause) from error

    async def _until_final(
        self,
        once: Callable[[], Awaitable[dict[str, Any]]],
        method: str,
        limit: asyncio.Timeout,
        causes: list[str],
    ) -> dict[str, Any]:
        """Tries until an answer is final; adds to `causes` why tries failed, except for silence."""
        for attempt in itertools.count():
            asked_at = time.monotonic()
            try:
                answer = await once()
            except (AccessDenied, ApiError, ApiUnreachable) as error:
                cause = error.cause if isinstance(error, ApiUnreachable) else error.message
                if not isinstance(error.__cause__, TimeoutError):
                    causes.append(cause)
                is_settling = await self.is_settling(error, asked_at)
                left_s = (limit.when() or 0) - asyncio.get_running_loop().time()
                delay_s = retry_delay_s(
                    Failure(status=None, method=method) if is_settling else _failure(error, method),
                    attempt=attempt,
                    jitter=random.random(),  # noqa: S311 - no secret
                    left_s=left_s,
                )
                if delay_s is None:
                    if isinstance(error, ApiError):
                        error.may_have_succeeded = attempt > 0
                    raise
                self.trouble = cause
                if self.on_trouble is not None:
                    self.on_trouble(cause)
            else:
                self.trouble = ""
                return answer
            await asyncio.sleep(delay_s)
        raise AssertionError("endless")

    async def is_settling(self, error: SharedPathwaysError, asked_at: float) -> bool:
        """Whether a refusal may come from a server that has just started.

        `asked_at` is the time of `time.monotonic` before the request was sent.
        """
        return await self._transport.is_settling(error, asked_at)

    async def get(
        self, path: str, *, params: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Returns an object, or the list of a collection; raises the errors of `request`."""
        return await self.request("GET", path, params=params, timeout_s=timeout_s)

    async def find(self, path: str, *, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Returns an object, or None if it does not exist; raises the other errors of `request`."""
        try:
            return await self.get(path, timeout_s=timeout_s)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Creates an object, once.

        If an object of that name has our own `LABEL_SESSION`, an earlier try created it: it is
        returned. For another owner's object this raises `ApiError` with ``AlreadyExists``, besides
        the errors of `request`. Without permission to read it, its owner is unknown; then the
        object may be our own if `ApiError.may_have_succeeded`.
        """
        try:
            return await self.request("POST", path, body=body, timeout_s=timeout_s)
        except ApiError as error:
            ours = _session_of(body)
            if error.reason != "AlreadyExists" or not ours:
                raise
            # Tenants have permission only to create Secrets.
            with contextlib.suppress(AccessDenied):
                found = await self.get(f"{path}/{body['metadata']['name']}", timeout_s=timeout_s)
                if _session_of(found) == ours:
                    return found
                error.may_have_succeeded = False
            raise

    async def delete(
        self, path: str, *, uid: str, grace_s: int | None = None, timeout_s: float | None = None
    ) -> bool:
        """Deletes one object, and in the background the objects that it owns.

        Another object of the same name is not deleted. A pod ends after `grace_s` seconds instead
        of its own grace period. Returns False if there is no object of that name and UID.
        """
        options = delete_body(uid)
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        for is_last in (False, True):
            try:
                await self.request("DELETE", path, body=options, timeout_s=timeout_s)
            except ApiError as error:
                if error.status == 404:
                    return False
                # The UID is another object's, or this object changed concurrently.
                if error.reason != "Conflict" or is_last:
                    raise
            else:
                return True
            with contextlib.suppress(AccessDenied):
                found = await self.find(path, timeout_s=timeout_s)
                if found is None or found["metadata"]["uid"] != uid:
                    return False
        raise AssertionError("the last try returns or raises")

    async def patch(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Changes fields of an object (a JSON merge patch) and returns it."""
        kind = "application/merge-patch+json"
        return await self.request("PATCH", path, body=body, content_type=kind, timeout_s=timeout_s)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str] | None = None, within_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Opens an endless answer, e.g. of a watch or of a followed log; yields its chunks.

        Raises the errors of `request`, also while the caller reads. After `within_s` seconds the
        connection counts as broken.
        """
        target = target_of("GET", path, params or {})
        async with self._transport.answer(
            target, "GET", path, params=params, read_within_s=within_s
        ) as response:
            yield response.content.iter_any()

    async def stream_lines(
        self, path: str, *, params: Mapping[str, str] | None = None
    ) -> AsyncGenerator[str, None]:
        """Yields the lines of an answer as they come, until the server ends it.

        A line of more than 64 KiB is cut. Close the generator (`contextlib.aclosing`) to close the
        connection. Raises the errors of `request`.
        """
        async with self.stream(path, params=params) as chunks:
            async for line in _lines(chunks):
                yield line

    async def upgrade(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str],
        timeout_s: float | None = None,
    ) -> aiohttp.ClientResponse:
        """Requests a protocol upgrade of a connection; raises the errors of `request`.

        Args:
          path: E.g. `paths.port_forward`.
          params: E.g. ``{"ports": "29000"}``.
          headers: Of the handshake, e.g. those of a WebSocket.
          timeout_s: Seconds for the handshake; None: `timeouts.API_CONNECT`. A failed connection is
            not retried.

        Returns:
          The answer, its connection still open. The caller must check the handshake and close the
          connection.
        """
        target = target_of("POST", path, params or {})
        within_s = timeouts.API_CONNECT.s if timeout_s is None else timeout_s
        refusal: AccessDenied | ApiError | None = None
        try:
            async with asyncio.timeout(within_s):
                while True:
                    asked_at = time.monotonic()
                    try:
                        return await self._transport.upgrade(
                            target, path, params=params, headers=headers
                        )
                    except (AccessDenied, ApiError) as error:
                        if not await self.is_settling(error, asked_at):
                            raise
                        refusal = error
                    await asyncio.sleep(_SETTLING_PAUSE_S)
        except TimeoutError as error:
            if refusal is None:
                raise self._transport.timed_out(target, "handshake", within_s) from error
            # (The server answers: it is not away once more, which would excuse its refusals.)
            cause = str(refusal)
            server = self.access.server
            raise ApiUnreachable(f"cannot {target}: {cause}", server=server, cause=cause) from error


async def _lines(chunks: AsyncIterable[bytes]) -> AsyncGenerator[str, None]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield _text(line)
        rest = rest[: _LINE_BYTES + 1]
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line[:_LINE_BYTES].removesuffix(b"\r").decode(errors="replace")


def _failure(error: AccessDenied | ApiError | ApiUnreachable, method: str) -> Failure:
    if isinstance(error, ApiError):
        return Failure(
            status=error.status,
            reason=error.reason,
            retry_after_s=error.retry_after_s,
            method=method,
        )
    is_final = isinstance(error, AccessDenied) or error.is_final
    return Failure(status=_FORBIDDEN if is_final else None, method=method)


def _session_of(thing: Mapping[str, Any]) -> str:
    return str((thing["metadata"].get("labels") or {}).get(LABEL_SESSION, ""))
