"""A session from the first look at the service to the deletion of its proxy: a pure machine.

    new → preflight → create → start → tunnel → probe → place → serve → delete → closed / failed
                          ↘ undo ↗

Events go in together with the time, effects come out (`messages`). One step runs at a time;
news of the proxy come at any time. Whatever goes wrong, and whoever wants it to end: once `create`
was begun, the session passes through one `DeleteProxy`, even if creating was answered by an error,
which proves nothing. Every phase but `serve` has a deadline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.constants import LOG_TAIL_LINES
from shared_pathways_service.errors import PlacementTimeout, ProxyFailed, SharedPathwaysError
from shared_pathways_service.events import Event, tenants
from shared_pathways_service.events import session as ev
from shared_pathways_service.session import failures
from shared_pathways_service.session.messages import (
    Announce,
    Cancelled,
    CreateProxy,
    Deleted,
    DeleteProxy,
    Effect,
    Finish,
    FollowProxy,
    OpenTunnel,
    Phase,
    Preflight,
    PreflightDone,
    Probe,
    Probed,
    ProxyCreated,
    SessionEvent,
    SliceView,
    Snapshot,
    StepFailed,
    StopStep,
    Tick,
    TunnelOpen,
)

__all__ = ["Session"]

#: Seconds that a create which is no longer wanted may take to answer before it is broken off: an
#: answer makes the deletion certain to come after it.
UNDO_S = 2.0
#: Seconds beyond queue_timeout that the resource manager has for its own refusal, which says more.
QUEUE_SLACK_S = 5.0
#: Seconds that the reason of a refusal may come after the end of the proxy which was refused.
SETTLE_S = 1.0
#: Seconds that the news of a proxy's end may come after that of the tunnel which broke by it.
TUNNEL_SETTLE_S = 3.0

#: Events of steps, by the phase that begins or ends.
_STARTED: Mapping[Phase, type[Event]] = {
    Phase.PREFLIGHT: ev.PreflightStarted,
    Phase.CREATE: ev.CreateStarted,
    Phase.START: ev.StartStarted,
    Phase.TUNNEL: ev.TunnelStarted,
    Phase.PROBE: ev.ProbeStarted,
    Phase.PLACE: ev.PlaceStarted,
    Phase.DELETE: ev.DeleteStarted,
}
_DONE: Mapping[Phase, type[Event]] = {
    Phase.PREFLIGHT: ev.PreflightDone,
    Phase.CREATE: ev.CreateDone,
    Phase.START: ev.StartDone,
    Phase.TUNNEL: ev.TunnelDone,
    Phase.PROBE: ev.ProbeDone,
    Phase.PLACE: ev.PlaceDone,
}

#: Phases in which the session is on its way up, with the proxy created or being created.
_RISING = (Phase.PREFLIGHT, Phase.CREATE, Phase.START, Phase.TUNNEL, Phase.PROBE, Phase.PLACE)
_BEFORE_JAX = (Phase.START, Phase.TUNNEL, Phase.PROBE)
_ENDING = (Phase.UNDO, Phase.DELETE, Phase.CLOSED, Phase.FAILED)


class Session:
    """The machine of one session.

    Args:
      request: What is to be reached, and in what time.
      now: The time, in seconds of any clock that only grows; the same clock in every call.
      delete_timeout_s: Seconds for the deletion, while somebody waits for it.
    """

    def __init__(self, request: SessionRequest, now: float, delete_timeout_s: float) -> None:
        self.request, self._tenant = request, request.tenant
        self.error: SharedPathwaysError | None = None
        self._snapshot = Snapshot(name=request.name, phase=Phase.NEW)
        self._slices = {
            index: SliceView(index=index, instance_type=str(kind), state="unplaced")
            for index, kind in enumerate(self._tenant.virtual_slices)
        }
        self._began = now
        self._phase_began = now
        self._ready_by = now + request.timeout_s
        self._place_by = self._ready_by
        self._queue_by: float | None = None
        queue_timeout_s = self._tenant.queue_timeout_s
        self._queue_left_s = None if queue_timeout_s is None else queue_timeout_s + QUEUE_SLACK_S
        self._end_by = 0.0
        self._delete_timeout_s = delete_timeout_s
        self._settle: tuple[float, ev.ProxyLost] | None = None
        self._serving = False
        self._last_event = ""
        self._waited_for: ev.ServiceWaiting | None = None
        self._now = now
        self._out: list[Effect] = []

    @property
    def snapshot(self) -> Snapshot:
        """All that is known now."""
        return dataclasses.replace(
            self._snapshot,
            slices=tuple(self._slices[index] for index in sorted(self._slices)),
            error=self.error.to_json() if self.error else None,
        )

    @property
    def phase(self) -> Phase:
        """Where the session is."""
        return self._snapshot.phase

    @property
    def next_deadline(self) -> float | None:
        """When a `Tick` is due; None when nothing is waited for (or for an endless queue only)."""
        due = self._phase_deadline()
        if self._settle is not None and self.phase not in _ENDING:
            due = self._settle[0] if due is None else min(due, self._settle[0])
        return None if due == float("inf") else due

    def start(self, now: float) -> list[Effect]:
        """Begins; returns the first effects."""
        self._now = now
        self._enter(Phase.PREFLIGHT, Preflight())
        return self._taken()

    def handle(self, event: SessionEvent, now: float) -> list[Effect]:
        """Takes one event in.

        Args:
          event: What happened. An answer that the running step cannot give is passed over.
          now: When.

        Returns:
          What is to be done, in this order.
        """
        self._now = max(now, self._now)
        match event:
            case Tick():
                self._tick()
            case Event():
                self._news(event)
            case Cancelled():
                self._cancelled(event)
            case StepFailed():
                self._step_failed(event.error)
            case _:
                self._answer(event)
        return self._taken()

    # ---- answers of the steps

    def _answer(self, event: PreflightDone | ProxyCreated | TunnelOpen | Probed | Deleted) -> None:
        match event, self.phase:
            case PreflightDone(), Phase.PREFLIGHT:
                self._set(service=event.service, namespace=event.namespace)
                if not self._slices and event.instance_types:
                    first = event.instance_types[0]
                    self._slices[0] = SliceView(index=0, instance_type=first, state="unplaced")
                self._enter(Phase.CREATE, CreateProxy())
            case ProxyCreated(), Phase.CREATE:
                self._set(uid=event.uid, pod=event.pod, log=event.log)
                self._enter(Phase.START, FollowProxy())
            case ProxyCreated(), Phase.UNDO:
                self._set(uid=event.uid, pod=event.pod, log=event.log)
                self._delete()
            case TunnelOpen(), Phase.TUNNEL:
                self._set(address=event.address)
                self._enter(Phase.PROBE, Probe(address=event.address))
            case Probed(), Phase.PROBE:
                self._set(ready=True)
                self._place_by = self._now + self.request.timeout_s
                self._enter(Phase.PLACE)
                self._announce(ev.SessionReady(duration_s=self._now - self._began))
                self._go_on()
            case Deleted(), Phase.DELETE:
                self._deleted(event)
            case _:
                pass

    def _step_failed(self, error: SharedPathwaysError) -> None:
        if self.phase is Phase.UNDO:
            self._delete()
        elif self.phase is Phase.DELETE:
            self._finish(left=str(error))
        elif self.phase in _RISING and self._settle is None:
            # (A step that fails because the proxy ended is explained by the proxy's end.)
            self._fail(error)

    def _deleted(self, event: Deleted) -> None:
        if isinstance(self.error, ProxyFailed) and not self.error.log_tail:
            self.error.log_tail = event.log_tail
        elif isinstance(self.error, PlacementTimeout) and event.log_tail:
            self.error = failures.with_last_line(self.error, event.log_tail[-1])
        self._finish()

    # ---- news

    def _news(self, news: Event) -> None:
        if self.phase is Phase.PREFLIGHT and isinstance(news, ev.ServiceEvent):
            if isinstance(news, ev.ServiceWaiting):
                self._waited_for = news
        elif self.phase in (Phase.NEW, Phase.PREFLIGHT, *_ENDING):
            return
        self._announce(_with_slice(news))
        self._last_event = f"{news.kind} {news.reason or ''}".strip()
        match news:
            case ev.TunnelBroken(final=False) if self.phase in _BEFORE_JAX:
                pass  # only the probe was on it, which tries again
            case tenants.TenantRefused():
                self._fail(failures.when_refused(self.request, news))
            case ev.ProxyLost():
                self._lost(news)
            case _:
                self._progress(news)

    def _progress(self, news: Event) -> None:
        match news:
            case ev.ProxyServing():
                self._serving = True
                self._set(pod=news.pod or self._snapshot.pod)
            case tenants.TenantQueued():
                self._queued(news)
            case tenants.TenantRunning():
                self._set(placed=True, preempted=False)
                self._leave_queue()
            case tenants.TenantDequeued():
                self._leave_queue()
            case tenants.TenantPreempted():
                self._set(preempted=True)
            case tenants.SlicePlaced():
                self._place(news, "placed")
            case tenants.SliceUnplaced():
                self._place(news, "unplaced")
            case _:
                pass
        self._go_on()

    def _queued(self, news: tenants.TenantQueued) -> None:
        self._set(position=news.position, holders=news.holders)
        if self._snapshot.placed:
            return  # It was preempted, and comes back however long that takes.
        if self._queue_by is None and self._queue_left_s is not None:
            self._queue_by = self._now + self._queue_left_s

    def _leave_queue(self) -> None:
        self._set(position=None, holders=())
        if self._queue_by is not None:
            # (A session that is queued again continues the same queue time.)
            self._queue_left_s = max(0.0, self._queue_by - self._now)
            self._queue_by = None
            # The time in the queue counts for nothing else.
            self._ready_by = max(self._ready_by, self._now + self.request.timeout_s)
            self._place_by = max(self._place_by, self._now + self.request.timeout_s)

    def _place(self, news: tenants.VirtualSliceEvent, state: str) -> None:
        index = news.virtual_index
        if index is None:
            return
        known = self._slices.get(index)
        self._slices[index] = SliceView(
            index=index,
            instance_type=news.instance_type or (known.instance_type if known else ""),
            state=state,
            slice_id=news.slice_id,
            generation=news.generation or 0,
        )
        if sum(view.state == "placed" for view in self._slices.values()) >= self._tenant.gang:
            self._set(placed=True, preempted=False)
            self._leave_queue()

    def _lost(self, news: ev.ProxyLost) -> None:
        """The proxy is no more, or out of reach. Why may come a little later."""
        exited = isinstance(news, ev.ProxyExited)
        refusal = failures.refusal_in(news) if isinstance(news, ev.ProxyExited) else None
        settling = self._settle[1] if self._settle else None
        if refusal is not None:
            self._fail(failures.when_refused(self.request, refusal))
        elif isinstance(settling, ev.ProxyExited):
            return
        elif exited and not self._snapshot.placed:
            # One that was refused ends too.
            self._settle = (self._now + SETTLE_S, news)
        elif isinstance(news, ev.TunnelBroken) and not news.final:
            self._settle = self._settle or (self._now + TUNNEL_SETTLE_S, news)
        else:
            self._fail(self._error_of(news))

    def _error_of(self, end: ev.ProxyLost) -> SharedPathwaysError:
        return failures.when_lost(self.request, end, served=self._snapshot.ready)

    # ---- on the way up

    def _go_on(self) -> None:
        """Leaves the phases that end by news rather than by a step's answer."""
        if self.phase is Phase.START and self._serving:
            self._enter(Phase.TUNNEL, OpenTunnel())
        if self.phase is Phase.PLACE and (self._snapshot.placed or self.request.wait == "ready"):
            self._enter(Phase.SERVE)
            self._set(timings={**self._snapshot.timings, "total": self._now - self._began})
            self._announce(ev.SessionServing(duration_s=self._now - self._began))

    # ---- on the way down

    def _cancelled(self, event: Cancelled) -> None:
        if event.delete_timeout_s is not None:
            longer = max(self._delete_timeout_s, event.delete_timeout_s)
            if self.phase is Phase.DELETE:
                self._end_by += longer - self._delete_timeout_s
            self._delete_timeout_s = longer
        if self.phase in _ENDING:
            return
        # (What has ended already was not ended by this.)
        self.error = event.error or (self._error_of(self._settle[1]) if self._settle else None)
        self._announce(ev.SessionEnding(reason=event.reason))
        self._go_down()

    def _fail(self, error: SharedPathwaysError) -> None:
        self.error = error
        self._announce(ev.SessionFailed(reason=str(error)))
        self._go_down(broken=True)

    def _go_down(self, *, broken: bool = False) -> None:
        """Turns round. A create that is not broken may answer first: see `UNDO_S`."""
        phase = self.phase
        if phase in (Phase.NEW, Phase.PREFLIGHT):
            self._out.append(StopStep())
            self._finish()
        elif phase is Phase.CREATE and not broken:
            self._end_by = self._now + UNDO_S
            self._enter(Phase.UNDO)
        else:
            self._delete()

    def _delete(self) -> None:
        self._out.append(StopStep())
        self._end_by = self._now + self._delete_timeout_s
        wants_log = isinstance(self.error, PlacementTimeout) or (
            isinstance(self.error, ProxyFailed) and not self.error.log_tail
        )
        lines = LOG_TAIL_LINES if wants_log and self._snapshot.uid else 0
        self._enter(Phase.DELETE, DeleteProxy(uid=self._snapshot.uid, log_lines=lines))

    def _finish(self, left: str = "") -> None:
        if left:
            left = f"proxy {self.request.name}: {left}"
        self._set(left=left, preempted=False, position=None, holders=())
        self._slices = {
            index: dataclasses.replace(view, state="unplaced", slice_id="")
            for index, view in self._slices.items()
        }
        self._enter(Phase.FAILED if self.error or left else Phase.CLOSED)
        took = self._now - self._began
        self._announce(ev.SessionEnded(reason=left or None, duration_s=took))
        self._out.append(Finish())

    # ---- time

    def _phase_deadline(self) -> float | None:
        if self.phase in (Phase.UNDO, Phase.DELETE):
            return self._end_by
        if self._queue_by is not None and self.phase not in _ENDING:
            return self._queue_by
        if self.phase is Phase.PLACE:
            return self._place_by
        return self._ready_by if self.phase in _RISING else None

    def _tick(self) -> None:
        due = self.next_deadline
        if due is None or self._now < due:
            return
        if self.phase is Phase.UNDO:
            self._delete()
        elif self.phase is Phase.DELETE:
            self._out.append(StopStep())
            self._finish(left=f"not confirmed deleted within {self._delete_timeout_s:g} s")
        elif self._settle is not None and self._now >= self._settle[0]:
            self._fail(self._error_of(self._settle[1]))
        elif self._queue_by is not None:
            self._fail(failures.when_out_of_queue(self.request, self._snapshot))
        else:
            self._fail(
                failures.when_out_of_time(
                    self.request, self.snapshot, self._last_event, self._waited_for
                )
            )

    # ---- small parts

    def _enter(self, phase: Phase, *effects: Effect) -> None:
        before = self.phase
        if before is not Phase.NEW:
            took = self._now - self._phase_began
            self._set(timings={**self._snapshot.timings, before.value: took})
            if before in _RISING and phase not in _ENDING:
                self._announce(_DONE[before](duration_s=took))
        self._phase_began = self._now
        self._set(phase=phase)
        if phase in _STARTED:
            self._announce(_STARTED[phase]())
        self._out.extend(effects)

    def _announce(self, event: Event) -> None:
        self._out.append(Announce(event=event))

    def _set(self, **changes: Any) -> None:
        self._snapshot = dataclasses.replace(self._snapshot, **changes)

    def _taken(self) -> list[Effect]:
        out, self._out = self._out, []
        return out


def _with_slice(news: Event) -> Event:
    """Returns an event of a home as the client receives it, whose slice is a virtual slice."""
    index = getattr(news, "virtual_index", None)
    return dataclasses.replace(news, slice=index)
