"""Holds the Lease of a service in its cluster, so that one head decides at a time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.in_cluster import in_cluster_access
from shared_pathways_service.kube.paths import item
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.machine_clock import machine_time
from shared_pathways_service.servers.resource_manager.lease.lease_terms import LeaseTerms, Timing

__all__ = ["HeadLease"]

_CONFLICT = 409
#: The exit code of a head that has lost its Lease.
_LOST = 1


class HeadLease:
    """The Lease of one service, as one head uses it on its event loop.

    Args:
      name: The Lease's name, in this pod's namespace.
      account: The directory with the token of the pod's service account.
      timing: Its times.
    """

    def __init__(self, name: str, account: Path, timing: Timing) -> None:
        access = in_cluster_access(account)
        self._api = KubeApi(access)
        self._path = item("leases", access.namespace, name)
        self._timing = timing
        # Two processes of one pod are two heads.
        identity = f"{os.environ.get('HOSTNAME', 'head')}_{uuid.uuid4()}"
        self._terms = LeaseTerms(identity, self._timing)
        self._lease: Mapping[str, Any] = {}

    def check(self) -> None:
        """Ends this process at once if this head may not decide now.

        An ordinary end would write to the state file, and to streams, which the next head may have.
        """
        if not self._terms.is_held(machine_time()):
            self._leave("it was not renewed in time")

    async def hold_until(self, stop: asyncio.Future[int], stack: contextlib.AsyncExitStack) -> None:
        """Waits until this head holds the Lease, or for `stop`; the stack releases the Lease."""
        stack.push_async_callback(self.close)
        acquiring = asyncio.ensure_future(self.acquire())
        stack.push_async_callback(_end_task, acquiring)
        either: tuple[asyncio.Future[Any], ...] = (acquiring, stop)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            acquiring.result()
            keeping = asyncio.create_task(self.keep())
            stack.push_async_callback(_end_task, keeping)

    async def acquire(self) -> None:
        """Waits until this head holds the Lease."""
        said = ""
        while True:
            try:
                lease = await self._read()
                if self._terms.may_take(lease, machine_time()) and await self._write(lease):
                    glog("I", f"Holds the Lease as {self._terms.identity}")
                    return
                why = f"{self._terms.holder(lease)} holds it"
            except SharedPathwaysError as error:
                why = str(error)
            if why != said:
                said = why
                glog("I", f"Waits for the Lease: {why}")
            await asyncio.sleep(self._timing.retry_s)

    async def keep(self) -> None:
        """Renews the Lease; ends this process if another head holds it, or that fails too long."""
        while True:
            await asyncio.sleep(self._timing.retry_s)
            # (A process that was stopped continues here.)
            self.check()
            try:
                if await self._write(self._lease):
                    continue
                # The answer to an earlier write of ours may have been lost.
                lease = await self._read()
                if (holder := self._terms.holder(lease)) != self._terms.identity:
                    self._leave(f"{holder or 'no head'} holds it")
                self._lease = lease
            except SharedPathwaysError as error:
                glog("W", f"Cannot renew the Lease: {error}")

    async def close(self) -> None:
        """Releases the Lease if it is still held, so that the next head need not wait."""
        with contextlib.suppress(SharedPathwaysError):
            if self._terms.is_held(machine_time()):
                await self._release()
        await self._api.close()

    async def _release(self) -> None:
        if await self._put(self._terms.released(self._lease)) is not None:
            return
        # A renewal without an answer may have been the last write.
        lease = await self._read()
        if self._terms.holder(lease) == self._terms.identity:
            await self._put(self._terms.released(lease))

    @staticmethod
    def _leave(why: str) -> NoReturn:
        glog("F", f"Lost the Lease: {why}")
        sys.stderr.flush()
        os._exit(_LOST)

    async def _read(self) -> Mapping[str, Any]:
        return await self._api.get(self._path, timeout_s=self._timing.renew_within_s)

    async def _write(self, lease: Mapping[str, Any]) -> bool:
        """Writes this head into a Lease; returns False if it has changed since it was read."""
        asked_at = machine_time()
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        written = await self._put(self._terms.taken(lease, stamp))
        if written is None:
            return False
        self._lease = written
        self._terms.renewed(asked_at)
        return True

    async def _put(self, lease: Mapping[str, Any]) -> Mapping[str, Any] | None:
        try:
            return await self._api.request(
                "PUT", self._path, body=lease, timeout_s=self._timing.renew_within_s / 2
            )
        except ApiError as error:
            if error.status == _CONFLICT:
                return None
            raise


async def _end_task(task: asyncio.Future[Any]) -> None:
    """Cancels a task of a Lease, and waits for its end: it may be writing."""
    task.cancel()
    await asyncio.wait([task])
