"""Runs the state machine of one session over a home: performs effects and reports outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.agent.deletion import delete_for_certain
from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.agent.session_entry import SessionEntry
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event, rfc3339
from shared_pathways_service.events.session import HomeLost
from shared_pathways_service.homes.base import Home, ProxyHandle
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import factor
from shared_pathways_service.patience.within import within
from shared_pathways_service.runtime.file_failures import explained
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.state_machine import Session

__all__ = ["Probe", "SessionRunner"]

#: Probes the proxy at an address, with plaintext gRPC or without, until it answers.
Probe = Callable[[str, bool], Awaitable[None]]
Send = Callable[[Mapping[str, Any]], None]
OnState = Callable[[m.Snapshot], object]
OnEvent = Callable[[Event], object]


_log = logging.getLogger(__name__)


class SessionRunner:
    """Runs one session, and closes its home.

    `on_state` gets the snapshot after each change, `on_event` each event; they must not block.
    `metrics` is the URL of the agent's metrics, for the journal.

    Attributes:
      is_hopeless: Whether the deletion failed permanently, so that a retry would not help.
    """

    def __init__(
        self,
        start: Start,
        *,
        home: Home,
        journal: Journal,
        probe: Probe,
        send: Send,
        on_state: OnState | None = None,
        on_event: OnEvent | None = None,
        metrics: str = "",
    ) -> None:
        self._start = start
        self._home = home
        self._entry = SessionEntry(start, journal, metrics)
        self._probe = probe
        self._send = send
        self._on_state = on_state
        self._on_event = on_event
        self._inbox: asyncio.Queue[tuple[int | None, m.SessionEvent]] = asyncio.Queue()
        self._step: asyncio.Task[None] | None = None
        self._step_number = 0
        self._beside: list[asyncio.Task[None]] = []
        self._handle: ProxyHandle | None = None
        self._finished = False
        self.is_hopeless = False
        self._last = m.Snapshot(name=start.request.name, phase=m.Phase.NEW)

    def cancel(self, cancelled: m.Cancelled) -> None:
        """Requests the end of the session; may be called at any time and repeatedly."""
        self._inbox.put_nowait((None, cancelled))

    async def run(self) -> m.Snapshot:
        """Runs the session to its end; returns its last snapshot."""
        loop = asyncio.get_running_loop()
        touching = asyncio.create_task(self._entry.keep_fresh())
        machine = Session(
            self._start.request, loop.time(), self._start.delete_timeout_s, patience=factor
        )
        try:
            await self._carry_out(machine, machine.start(loop.time()))
            while not self._finished:
                event = await self._next_event(machine.next_deadline)
                await self._carry_out(machine, machine.handle(event, loop.time()))
        finally:
            for task in (touching, *self._beside, self._step):
                await self._stop(task)
            await self._close_home()
        return machine.snapshot

    async def _close_home(self) -> None:
        # The session's outcome is known, and matters more than an error of closing the home.
        try:
            async with within(timeouts.STEP_CANCELLATION):
                await self._home.close()
        except Exception as error:  # noqa: BLE001 - this process ends in any case
            _log.warning("the home of %s did not close: %r", self._start.request.name, error)

    async def logs(self, lines: int) -> list[str]:
        """Returns the last lines of the proxy's log."""
        if self._handle is None:
            return []
        try:
            async with within(timeouts.PROXY_LOG):
                return await self._home.logs(self._handle, lines)
        except TimeoutError as error:
            raise SharedPathwaysError(
                f"the log of {self._handle.name} did not come within {timeouts.PROXY_LOG.s:g} s"
            ) from error

    async def _next_event(self, deadline: float | None) -> m.SessionEvent:
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    number, event = await self._inbox.get()
            except TimeoutError:
                return m.Tick()
            # The answer of a cancelled step is not an answer of the present one.
            if number is None or number == self._step_number:
                return event

    async def _carry_out(self, machine: Session, effects: list[m.Effect]) -> None:
        # Within a phase, the snapshot is sent before the events, because an event callback may read
        # the state. Before a new phase, its events are sent first.
        if machine.phase is self._last.phase:
            self._publish(machine.snapshot)
        for effect in effects:
            await self._act(effect, machine)
        self._publish(machine.snapshot)

    async def _act(self, effect: m.Effect, machine: Session) -> None:
        match effect:
            case m.Announce():
                self._announce(effect.event)
            case m.Preflight():
                self._begin(self._preflight())
            case m.CreateProxy():
                self._begin(self._create(machine.snapshot))
            case m.FollowProxy() | m.ExamineService():
                self._begin_beside(effect)
            case m.OpenTunnel():
                self._begin(self._open_tunnel())
            case m.Probe():
                self._begin(self._run_probe(effect.address))
            case m.StopStep():
                self._step_number += 1
                await self._stop(self._step)
            case m.DeleteProxy():
                self._begin(self._delete(effect))
            case m.Finish():
                self._finished = True

    def _begin(self, step: Awaitable[m.SessionEvent]) -> None:
        self._step_number += 1
        self._step = asyncio.create_task(self._run_step(self._step_number, step))

    def _begin_beside(self, effect: m.FollowProxy | m.ExamineService) -> None:
        """Begins what is concurrent to the steps."""
        work = self._follow() if isinstance(effect, m.FollowProxy) else self._examine_service()
        self._beside.append(asyncio.create_task(work))

    async def _run_step(self, number: int, step: Awaitable[m.SessionEvent]) -> None:
        try:
            event = await step
        except SharedPathwaysError as error:
            event = m.StepFailed(error=error)
        except Exception as error:  # noqa: BLE001 - the proxy is deleted in any case
            _log.exception("a step of %s failed", self._start.request.name)
            what = f"{type(error).__name__}: {error}"
            event = m.StepFailed(error=SharedPathwaysError(f"the agent failed: {what}"))
        self._inbox.put_nowait((number, event))

    async def _stop(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=timeouts.STEP_CANCELLATION.s)

    async def _preflight(self) -> m.SessionEvent:
        info = await self._home.preflight(self._start.request, self._post)
        return m.PreflightDone(
            service=info.address,
            instance_types=info.instance_types,
            namespace=info.namespace,
            more_slices=info.more_slices,
        )

    async def _create(self, snapshot: m.Snapshot) -> m.SessionEvent:
        start = self._start
        state_dir = Path(start.journal).parent
        with explained(state_dir, "SPS_STATE_DIR"):
            self._entry.write(snapshot)
        handle = await self._home.create_proxy(
            start.request, session=start.session, owner=start.owner
        )
        self._handle = handle
        with explained(state_dir, "SPS_STATE_DIR"):
            file = None if handle.token is None else self._entry.write_token(handle.token)
        self._send(
            {
                "type": "proxy",
                "token": handle.token,
                "token_file": file,
                "insecure_credentials": handle.insecure_credentials,
                "transfer_dir": handle.transfer_dir,
                "is_remote": handle.is_remote,
            }
        )
        return m.ProxyCreated(uid=handle.uid, pod=handle.pod, log=handle.log)

    async def _open_tunnel(self) -> m.SessionEvent:
        assert self._handle is not None
        address = await self._home.open_tunnel(self._handle, self._start.request.local_port)
        return m.TunnelOpen(address=address)

    async def _run_probe(self, address: str) -> m.SessionEvent:
        assert self._handle is not None
        await self._probe(address, self._handle.insecure_credentials)
        return m.Probed()

    async def _delete(self, effect: m.DeleteProxy) -> m.SessionEvent:
        tail: list[str] = []
        if effect.log_lines:
            with contextlib.suppress(SharedPathwaysError, TimeoutError):
                async with within(timeouts.PROXY_LAST_LOG):
                    tail = await self.logs(effect.log_lines)
        name, session = self._start.request.name, self._start.session
        try:
            await delete_for_certain(self._home, name=name, uid=effect.uid, session=session)
        except SharedPathwaysError:
            self.is_hopeless = True
            raise
        self._entry.remove()
        return m.Deleted(log_tail=tuple(tail))

    def _post(self, event: Event) -> None:
        self._inbox.put_nowait((None, event))

    async def _follow(self) -> None:
        assert self._handle is not None
        reason = "the home has no more events of it"
        try:
            async for event in self._home.follow(self._handle):
                self._post(event)
        except SharedPathwaysError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the proxy is deleted in any case
            _log.exception("the view of %s failed", self._start.request.name)
            reason = f"{type(error).__name__}: {error}"
        # Ignored if the proxy's end was reported before.
        self._post(HomeLost(reason=reason))

    async def _examine_service(self) -> None:
        failure: SharedPathwaysError | None = None
        try:
            failure = await self._home.service_failure(self._start.request)
        except SharedPathwaysError as error:
            _log.info("the service of %s is not examined: %s", self._start.request.name, error)
        except Exception:  # noqa: BLE001 - the end of the proxy is known without it
            _log.exception("the examination of %s's service failed", self._start.request.name)
        self._inbox.put_nowait((None, m.ServiceExamined(failure=failure)))

    def _announce(self, said: Event) -> None:
        # (Events of other processes have the clocks of those.)
        event = dataclasses.replace(
            said,
            time=rfc3339(time.time()),
            monotonic=time.monotonic(),
            tenant=self._start.request.name,
            reason=said.reason or None,
        )
        _log.info("%s", event.to_json())
        if self._on_event is not None:
            self._on_event(event)
        self._send({"type": "event", "event": event.to_dict()})

    def _publish(self, snapshot: m.Snapshot) -> None:
        if snapshot == self._last:
            return
        self._last = snapshot
        self._send({"type": "state", "state": snapshot.to_json()})
        if self._on_state is not None:
            self._on_state(snapshot)
        self._entry.update(snapshot)
