"""Finds the slices of a proxy whose resource manager does not report placements.

The proxy's own log names its slices. While it waits, the pods and logs of other proxies show the
holders of the slices.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.cluster_state.claims import (
    POD_SELECTOR,
    Claim,
    claims_to_check,
    find_shortage,
    read_claims,
)
from shared_pathways_service.cluster_state.log_cursor import LogCursor
from shared_pathways_service.cluster_state.log_lines import parse_line
from shared_pathways_service.cluster_state.placement import PlacementFollower
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events import session as ev
from shared_pathways_service.homes.base import Tell
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.paths import collection, pod_log
from shared_pathways_service.manifests.names import PROXY_CONTAINER
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["PlacementWatch", "cannot_follow"]

#: The longest pause in seconds before a log that ended, or failed, is requested again.
_LOG_PAUSE_S = 1.0
_LAST_LOG_PAUSE_S = 30.0
#: Seconds between two polls of other proxies' slices, while this proxy waits for its own.
_CLAIMS_PAUSE_S = 2.0
#: Seconds between two polls of the log of another proxy that is not placed.
_OTHER_LOG_PAUSE_S = 10.0
#: The part of such a log that is read: the placement is near its beginning.
_OTHER_LOG_BYTES = 1 << 20


class PlacementWatch:
    """Follows the placement of one running proxy.

    Args:
      api: The API server.
      namespace: The proxy's namespace.
      tenant: The request.
      service: The service of the slices.
      pod: The proxy's pod.
      tell: Called with the events.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        tenant: TenantRequest,
        service: Service,
        *,
        pod: str,
        tell: Tell,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = tenant.name
        self._service = service
        self._pod = pod
        self._tell = tell
        self._placement = PlacementFollower(
            tenant.type_names,
            elastic_slices=tenant.elastic_slices,
            queues=tenant.queue_timeout_s is not None,
        )
        self._waiting = asyncio.Event()
        #: Claims of other proxies: those known to be placed, and when to read a log again.
        self._placed: set[tuple[str, str]] = set()
        self._check_after: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Reports each change of the placement; does not return."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_log())
            group.create_task(self._compare_claims())

    async def _compare_claims(self) -> None:
        """Polls the slices of other proxies while this one waits."""
        path, params = collection("pods", self._namespace), {"labelSelector": POD_SELECTOR}
        while True:
            await self._waiting.wait()
            try:
                pods = (await self._api.get(path, params=params)).get("items") or ()
            except ApiUnreachable:
                pass  # the watch of the Job handles it
            except SharedPathwaysError as error:
                self._warn_of("the slices that other proxies hold", error)
                return
            else:
                claims = await self._with_placements(read_claims(self._service, pods, self._placed))
                shortage = find_shortage(self._service, self._name, claims)
                for news in self._placement.take_shortage(shortage):
                    self._pass_on(news)
            if not self._placement.waiting:
                self._waiting.clear()
            await asyncio.sleep(_CLAIMS_PAUSE_S)

    async def _with_placements(self, claims: list[Claim]) -> list[Claim]:
        """Returns the claims, with placements from other proxies' logs where they matter.

        Without a readable log, the order in which the proxies started decides. A proxy that
        started later counts as placed from the next poll on: its own session may be ending it.
        """
        mine = next((claim for claim in claims if claim.holder.name == self._name), None)
        if mine is None:
            return claims
        now = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with within(timeouts.OTHER_PROXIES_LOGS):
                for claim in claims_to_check(self._service, self._name, claims):
                    if now >= self._check_after.get(claim.key, now):
                        self._check_after[claim.key] = now + _OTHER_LOG_PAUSE_S
                        if await self._is_placed(claim):
                            self._placed.add(claim.key)
        return [
            dataclasses.replace(claim, placed=True)
            if claim.key in self._placed and claim.since <= mine.since
            else claim
            for claim in claims
        ]

    async def _is_placed(self, claim: Claim) -> bool:
        placement = PlacementFollower(claim.virtual_slices, elastic_slices=claim.elastic_slices)
        params = {"container": PROXY_CONTAINER, "limitBytes": str(_OTHER_LOG_BYTES)}
        lines = self._api.stream_lines(pod_log(self._namespace, claim.pod), params=params)
        with contextlib.suppress(SharedPathwaysError):
            async with contextlib.aclosing(lines):
                async for line in lines:
                    event = parse_line(line)
                    if event is not None:
                        placement.take_line(event)
                    if placement.running:
                        break
        return placement.running

    async def _follow_log(self) -> None:
        cursor = LogCursor()
        pause_s = _LOG_PAUSE_S
        while True:
            try:
                await self._read_log(cursor)
                pause_s = _LOG_PAUSE_S
            except ApiUnreachable:
                pass  # the watch of the Job handles it
            except SharedPathwaysError as error:
                if pause_s == _LOG_PAUSE_S:
                    self._warn_of("the proxy's log, which tells of its slices,", error)
                pause_s = min(pause_s * 2, _LAST_LOG_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _read_log(self, cursor: LogCursor) -> None:
        params = {"follow": "true", "timestamps": "true", "container": PROXY_CONTAINER}
        if cursor.since:
            params["sinceTime"] = cursor.since
        cursor.restart()
        lines = self._api.stream_lines(pod_log(self._namespace, self._pod), params=params)
        async with contextlib.aclosing(lines):
            async for line in lines:
                text = cursor.take(line)
                event = parse_line(text) if text is not None else None
                if event is None:
                    continue
                for news in self._placement.take_line(event):
                    self._pass_on(news)
                if self._placement.waiting:
                    self._waiting.set()
                else:
                    self._waiting.clear()

    def _pass_on(self, news: Event) -> None:
        # `serving` was reported as soon as the container ran.
        if not isinstance(news, ev.ProxyServing):
            self._tell(news)

    def _warn_of(self, what: str, error: Exception) -> None:
        self._tell(cannot_follow(what, error))


def cannot_follow(what: str, error: Exception) -> Event:
    """Returns the warning that one source of events cannot be followed."""
    return ev.ServiceWarning(reason=f"{what} cannot be followed: {error}")
