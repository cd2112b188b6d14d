"""Watches objects: a list, then watches that each resume where the last one ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import CONNECT_VERB, ApiError, ApiUnreachable
from shared_pathways_service.patience import timeouts

__all__ = ["WatchEvent", "watch"]


#: The server ends a watch after this many seconds; a range, so that clients do not return at once.
_WATCH_S = (240, 300)
_FIRST_PAUSE_S = 0.1
_LAST_PAUSE_S = 8.0
#: Failures in a row before trouble is reported: a single broken connection is normal.
_TROUBLE = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchEvent:
    """A change of one object.

    Attributes:
      kind: ``SYNCED`` has no object: all objects that existed at the start, or after a gap in
        the events, have been reported.
      object: Its current state; for ``DELETED`` its last state.
    """

    kind: Literal["ADDED", "MODIFIED", "DELETED", "SYNCED"]
    object: Mapping[str, Any] = dataclasses.field(default_factory=dict)


async def watch(
    api: KubeApi,
    path: str,
    *,
    params: Mapping[str, str] | None = None,
    resource_version: str | None = None,
    known: Sequence[Mapping[str, Any]] = (),
    give_up_after_s: float | None = None,
    on_trouble: Callable[[str], object] = lambda _: None,
) -> AsyncGenerator[WatchEvent, None]:
    """Yields the changes of a collection's objects, endlessly.

    A broken or ended watch resumes where it stopped. If the server no longer has the changes since
    then, the objects are listed again, and new, changed and deleted objects are reported.

    Args:
      api: The server.
      path: Of the collection.
      params: E.g. ``{"labelSelector": "…"}``.
      resource_version: Start here, without a list; None: list first.
      known: The objects that the caller knows as of `resource_version`.
      give_up_after_s: Seconds from the first failed connection until failing is an error; None:
        `timeouts.WATCH_AWAY`.
      on_trouble: Called with the reason when a connection fails for the second time in a row, and
        with ``""`` when there is one again; must not block.

    Yields:
      The events. Close the generator (`contextlib.aclosing`) to close its connection.

    Raises:
      AccessDenied: 403, also later on; 401 at the beginning. (Later, credentials have expired, and
        their owner may renew them: then it is raised after `give_up_after_s`.)
      ApiError: Another final answer, e.g. 404 for a resource that does not exist.
      ApiUnreachable: Connections have failed for `give_up_after_s`.
    """
    watching = _Watching(api, path, params or {}, give_up_after_s, on_trouble)
    watching.version = resource_version or ""
    watching.remember(known)
    while True:
        try:
            if not watching.version:
                for event in await watching.list():
                    yield event
            async with contextlib.aclosing(watching.stream()) as events:
                async for event in events:
                    yield event
        except (AccessDenied, ApiError, ApiUnreachable) as error:
            await watching.judge(error)
        await watching.pause()


class _Watching:
    def __init__(
        self,
        api: KubeApi,
        path: str,
        params: Mapping[str, str],
        give_up_after_s: float | None,
        on_trouble: Callable[[str], object],
    ) -> None:
        self._api = api
        self._path = path
        self._params = params
        self._give_up_after_s = give_up_after_s
        self._on_trouble = on_trouble
        self._failures = 0
        self._objects: dict[str, Mapping[str, Any]] = {}
        self._pause_s = _FIRST_PAUSE_S
        self._requested_at = time.monotonic()
        # When the first of the connections failed that have failed since; None: the last one did
        # not.
        self._failing_since: float | None = None
        self._has_connected = False
        # Whether the last stream began, and was not answered by something else.
        self._has_streamed = False
        self.version = ""

    def remember(self, objects: Sequence[Mapping[str, Any]]) -> None:
        self._objects = {item["metadata"]["uid"]: item for item in objects}

    async def list(self) -> list[WatchEvent]:
        self._requested_at = time.monotonic()
        answer = await self._api.get(self._path, params=self._params)
        before = self._objects
        self.remember(answer.get("items") or ())
        events = [
            WatchEvent(kind="DELETED", object=item)
            for uid, item in before.items()
            if uid not in self._objects
        ]
        for uid, item in self._objects.items():
            if uid not in before:
                events.append(WatchEvent(kind="ADDED", object=item))
            elif _version(before[uid]) != _version(item):
                events.append(WatchEvent(kind="MODIFIED", object=item))
        self.version = _version(answer)
        self._received()
        return [*events, WatchEvent(kind="SYNCED")]

    async def stream(self) -> AsyncGenerator[WatchEvent, None]:
        lasts_s = random.randint(*_WATCH_S)  # noqa: S311 - no secret
        params = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(lasts_s),
        }
        rest = bytearray()
        self._requested_at = time.monotonic()
        self._has_streamed = False
        stream = self._api.stream(
            self._path, params=params, within_s=lasts_s + timeouts.WATCH_OVERDUE.s
        )
        async with stream as chunks:
            opened_at = time.monotonic()
            self._connected()
            self._has_streamed = True
            try:
                async for chunk in chunks:
                    rest += chunk
                    while (end := rest.find(b"\n")) >= 0:
                        event = self._take(self._parsed(rest[:end]))
                        del rest[: end + 1]
                        if event is not None:
                            yield event
            finally:
                # A silent connection is not a failure; one that broke at once is.
                if time.monotonic() - opened_at > _LAST_PAUSE_S:
                    self._failing_since = None

    def _parsed(self, line: bytes | bytearray) -> Mapping[str, Any]:
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict) and {"type", "object"} <= message.keys():
                return message
        self._has_streamed = False
        cause = "a line is no event; is there a proxy on the way?"
        server = self._api.access.server
        raise ApiUnreachable(
            f"watch of {self._path} at {server}: {cause}", server=server, cause=cause
        )

    def _take(self, message: Mapping[str, Any]) -> WatchEvent | None:
        item = message["object"]
        if message["type"] == "ERROR":
            status = int(item.get("code") or 500)
            reason = str(item.get("reason") or "")
            text = str(item.get("message") or "")
            raise ApiError(f"watch of {self._path}: {text}", status=status, reason=reason)
        self._received()
        self.version = _version(item)
        if message["type"] == "BOOKMARK":
            return None
        if message["type"] == "DELETED":
            self._objects.pop(item["metadata"]["uid"], None)
        else:
            self._objects[item["metadata"]["uid"]] = item
        return WatchEvent(kind=message["type"], object=item)

    def _received(self) -> None:
        self._failing_since = None
        self._has_connected = True
        self._pause_s = _FIRST_PAUSE_S

    def _connected(self) -> None:
        if self._failures >= _TROUBLE:
            self._on_trouble("")
        self._failures = 0
        self._has_connected = True

    async def judge(self, error: AccessDenied | ApiError | ApiUnreachable) -> None:
        """Raises the error if it is final."""
        if isinstance(error, ApiError) and error.status == 410:
            self.version = ""
            return
        if await self._api.is_settling(error, self._requested_at):
            return
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        has_streamed, self._has_streamed = self._has_streamed, False
        if self._is_final(error):
            raise error
        given_s = self._give_up_after_s
        limit_s = timeouts.WATCH_AWAY.s if given_s is None else given_s
        if now - self._failing_since >= limit_s:
            if not has_streamed:
                raise error
            # Streams that break delivered nothing, as where no object changes: a list decides.
            self.version = ""
        self._failures += 1
        if self._failures == _TROUBLE:
            self._on_trouble(str(error))

    def _is_final(self, error: AccessDenied | ApiError | ApiUnreachable) -> bool:
        if isinstance(error, AccessDenied):
            return error.verb != CONNECT_VERB or not self._has_connected
        # (Another network may answer in the server's place, with a certificate of its own.)
        may_recover = isinstance(error, ApiUnreachable) and self._has_connected
        return error.is_final and not may_recover

    async def pause(self) -> None:
        """Waits before the next connection, longer after each one without events."""
        await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        self._pause_s = min(_LAST_PAUSE_S, self._pause_s * 2)


def _version(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["resourceVersion"])
