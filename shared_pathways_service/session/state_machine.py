"""The state machine of a session, from the preflight to the deletion of its proxy: pure.

    new → preflight → create → start → tunnel → probe → place → serve → delete → closed / failed
                          ↘ undo ↗

Its inputs are events with the time, its outputs effects (`messages`). One step runs at a time;
events of the proxy occur at any time. Once `create` has begun, every path to the end contains one
`DeleteProxy`, even if `create` failed, because an error does not prove that no proxy exists. Every
phase but `serve` has a deadline. In `serve` the time in the queue has one, unless the link is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.constants import LOG_TAIL_LINES
from shared_pathways_service.errors import PlacementTimeout, ProxyFailed, SharedPathwaysError
from shared_pathways_service.events import Event, tenants
from shared_pathways_service.events import session as ev
from shared_pathways_service.patience import timeouts
from shared_pathways_service.session import failures, proxy_ends
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.messages import BEFORE_JAX, ENDING, RISING, Phase
from shared_pathways_service.session.phase_deadlines import Deadlines
from shared_pathways_service.session.view import SessionView

__all__ = ["Session"]

#: Seconds by which the reason of a refusal may follow the end of the refused proxy.
SETTLE_S = timeouts.REFUSAL_REASON.seconds
#: Seconds by which the failure of its service may follow the end of a proxy. This is the limit: the
#: answer ends the wait.
SERVICE_SETTLE_S = timeouts.SERVICE_FAILURE.seconds
#: Seconds by which the event of a proxy's end may follow that of its broken tunnel.
TUNNEL_SETTLE_S = timeouts.TUNNEL_END_REASON.seconds
#: Likewise after an end of a link, which is often noticed when the API server is back, while the
#: watches of the proxy still wait for their next try. This is the limit: the report ends the wait.
#: (A 404 for the port-forward alone does not say how the proxy ended, which the watches know.)
LINK_SETTLE_S = timeouts.LINK_END_REASON.seconds

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


class Session:
    """The state machine of one session; times are seconds of any monotonic clock.

    Args:
      request: The session's request.
      now: The time.
      delete_timeout_s: Seconds for the deletion.
      patience: Returns the factor of the waits that the user has not limited.
    """

    def __init__(
        self,
        request: SessionRequest,
        now: float,
        delete_timeout_s: float,
        patience: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._patience = patience
        self.request = request
        self.error: SharedPathwaysError | None = None
        self._view = SessionView(request)
        self._deadlines = Deadlines(request, now, delete_timeout_s, patience)
        self._began = now
        self._phase_began = now
        self._settle: tuple[float, ev.ProxyLost] | None = None
        self._end: ev.ProxyLost | None = None
        self._refusal_by = now
        self._last_event = ""
        self._waited_for: ev.ServiceWaiting | None = None
        self._more_slices = ""
        self._now = now
        self._out: list[m.Effect] = []

    @property
    def snapshot(self) -> m.Snapshot:
        """The present state of the session."""
        return dataclasses.replace(
            self._view.known,
            slices=self._view.slices,
            error=self.error.to_json() if self.error else None,
        )

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self._view.known.phase

    @property
    def next_deadline(self) -> float | None:
        """Time at which a `Tick` is due; None if no deadline applies (or the queue has none)."""
        due = None if self._is_waiting_for_link else self._deadlines.of(self.phase)
        if self._settle is not None and self.phase not in ENDING:
            due = self._settle[0] if due is None else min(due, self._settle[0])
        return None if due == float("inf") else due

    @property
    def _is_waiting_for_link(self) -> bool:
        # Whether its slices were placed in time cannot be known then.
        return self.phase is Phase.SERVE and self._view.known.waits_for_link

    def start(self, now: float) -> list[m.Effect]:
        """Starts the session; returns the first effects."""
        self._now = now
        self._enter(Phase.PREFLIGHT, m.Preflight())
        return self._taken()

    def handle(self, event: m.SessionEvent, now: float) -> list[m.Effect]:
        """Processes one event; returns the effects to perform, in this order.

        An answer that does not belong to the running step is ignored.
        """
        self._now = max(now, self._now)
        match event:
            case m.Tick():
                self._tick()
            case Event():
                self._take(event)
            case m.Cancelled():
                self._cancelled(event)
            case m.StepFailed():
                self._step_failed(event.error)
            case m.ServiceExamined():
                self._service_examined(event.failure)
            case _:
                self._answer(event)
        return self._taken()

    def _answer(
        self, event: m.PreflightDone | m.ProxyCreated | m.TunnelOpen | m.Probed | m.Deleted
    ) -> None:
        match event, self.phase:
            case m.PreflightDone(), Phase.PREFLIGHT:
                self._view.set(service=event.service, namespace=event.namespace)
                self._more_slices = event.more_slices
                if event.instance_types:
                    self._view.assume_slice(event.instance_types[0])
                self._enter(Phase.CREATE, m.CreateProxy())
            case m.ProxyCreated(), Phase.CREATE:
                self._view.set(uid=event.uid, pod=event.pod, log=event.log)
                self._enter(Phase.START, m.FollowProxy())
            case m.ProxyCreated(), Phase.UNDO:
                self._view.set(uid=event.uid, pod=event.pod, log=event.log)
                self._delete()
            case m.TunnelOpen(), Phase.TUNNEL:
                self._view.set(address=event.address)
                self._enter(Phase.PROBE, m.Probe(address=event.address))
            case m.Probed(), Phase.PROBE:
                self._view.set(ready=True)
                self._deadlines.start_placement(self._now)
                self._enter(Phase.PLACE)
                self._announce(ev.SessionReady(duration_s=self._now - self._began))
                self._go_on()
            case m.Deleted(), Phase.DELETE:
                self._deleted(event)
            case _:
                pass

    def _step_failed(self, error: SharedPathwaysError) -> None:
        if self.phase is Phase.UNDO:
            self._delete()
        elif self.phase is Phase.DELETE:
            self._finish(left=str(error))
        elif self.phase in RISING and self._settle is None:
            # (If the proxy ended, its end explains the failed step.)
            self._fail(error)

    def _deleted(self, event: m.Deleted) -> None:
        if isinstance(self.error, ProxyFailed) and not self.error.log_tail:
            self.error = proxy_ends.with_log_tail(self.error, event.log_tail, self._end)
        elif isinstance(self.error, PlacementTimeout) and event.log_tail:
            self.error = failures.with_last_line(self.error, event.log_tail[-1])
        self._finish()

    def _take(self, event: Event) -> None:
        if self.phase is Phase.PREFLIGHT and isinstance(event, ev.ServiceEvent):
            if isinstance(event, ev.ServiceWaiting):
                self._waited_for = event
        elif self.phase in (Phase.NEW, Phase.PREFLIGHT, *ENDING):
            return
        # (For a client, the slice of an event is a virtual slice.)
        self._announce(dataclasses.replace(event, slice=getattr(event, "virtual_index", None)))
        self._last_event = f"{event.kind} {event.reason or ''}".strip()
        match event:
            case ev.TunnelBroken(final=False) if self.phase in BEFORE_JAX:
                pass  # only the probe used it, which retries
            case tenants.TenantRefused():
                self._fail(failures.when_refused(self.request, event, self._more_slices))
            case ev.ProxyLost():
                self._lost(event)
            case _:
                self._view.take(event)
                self._deadlines.follow_queue(self._now, is_queued=self._view.is_queued)
                if isinstance(event, ev.LinkResumed):
                    self._deadlines.extend_queue(self._now)
                self._go_on()

    def _lost(self, event: ev.ProxyLost) -> None:
        """Processes the end or loss of the proxy, whose reason may be reported a little later."""
        refusal = failures.refusal_in(event) if isinstance(event, ev.ProxyExited) else None
        settling = self._settle[1] if self._settle else None
        if refusal is not None:
            self._fail(failures.when_refused(self.request, refusal, self._more_slices))
        elif isinstance(settling, ev.ProxyExited):
            return
        elif isinstance(event, ev.ProxyExited) and not self._view.known.placed:
            # A refused proxy ends too.
            due = self._refusal_by = self._now + SETTLE_S * self._patience()
            if self.phase in RISING and proxy_ends.is_own_end(event):
                due = self._now + SERVICE_SETTLE_S * self._patience()
                self._out.append(m.ExamineService())
            self._settle = (due, event)
        elif isinstance(event, ev.TunnelBroken) and (pause_s := _settling_s(event)):
            self._settle = self._settle or (self._now + pause_s * self._patience(), event)
        else:
            self._fail(self._error_of(event), event)

    def _service_examined(self, failure: SharedPathwaysError | None) -> None:
        if self._settle is None or self.phase in ENDING:
            return
        due, end = self._settle
        if failure is not None:
            self._fail(proxy_ends.when_service_failed(failure, self._error_of(end)), end)
        else:
            self._settle = (min(due, self._refusal_by), end)

    def _error_of(self, end: ev.ProxyLost) -> SharedPathwaysError:
        known = self._view.known
        return failures.when_lost(self.request, end, served=known.ready, link=known.link)

    def _go_on(self) -> None:
        """Leaves phases that end by an event rather than by a step's answer."""
        if self.phase is Phase.START and self._view.is_serving:
            self._enter(Phase.TUNNEL, m.OpenTunnel())
        if self.phase is Phase.PLACE and (self._view.known.placed or self.request.wait == "ready"):
            self._enter(Phase.SERVE)
            self._view.set(timings={**self._view.known.timings, "total": self._now - self._began})
            self._announce(ev.SessionServing(duration_s=self._now - self._began))

    def _cancelled(self, event: m.Cancelled) -> None:
        if event.delete_timeout_s is not None:
            self._deadlines.extend_deletion(event.delete_timeout_s, self.phase)
        if self.phase in ENDING:
            return
        # (If the proxy has ended already, its end is the cause, not this event.)
        self.error = event.error
        if self.error is None and self._settle is not None:
            self._end = self._settle[1]
            self.error = self._error_of(self._end)
        self._announce(ev.SessionEnding(reason=event.reason))
        self._go_down()

    def _fail(self, error: SharedPathwaysError, end: ev.ProxyLost | None = None) -> None:
        """Begins the end of a session that fails, because of the proxy's `end` if that is given."""
        self.error = error
        self._end = end
        self._announce(ev.SessionFailed(reason=str(error)))
        self._go_down(broken=True)

    def _go_down(self, *, broken: bool = False) -> None:
        """Begins the end; an unbroken create may answer first (`phase_deadlines.UNDO_S`)."""
        phase = self.phase
        if phase in (Phase.NEW, Phase.PREFLIGHT):
            self._out.append(m.StopStep())
            self._finish()
        elif phase is Phase.CREATE and not broken:
            self._deadlines.start_undo(self._now)
            self._enter(Phase.UNDO)
        else:
            self._delete()

    def _delete(self) -> None:
        self._out.append(m.StopStep())
        self._deadlines.start_deletion(self._now)
        wants_log = isinstance(self.error, PlacementTimeout) or (
            isinstance(self.error, ProxyFailed) and not self.error.log_tail
        )
        lines = LOG_TAIL_LINES if wants_log and self._view.known.uid else 0
        self._enter(Phase.DELETE, m.DeleteProxy(uid=self._view.known.uid, log_lines=lines))

    def _finish(self, left: str = "") -> None:
        if left:
            left = f"proxy {self.request.name}: {left}"
        self._view.end(left)
        self._enter(Phase.FAILED if self.error or left else Phase.CLOSED)
        took = self._now - self._began
        self._announce(ev.SessionEnded(reason=left or None, duration_s=took))
        self._out.append(m.Finish())

    def _tick(self) -> None:
        due = self.next_deadline
        if due is None or self._now < due:
            return
        if self.phase is Phase.UNDO:
            self._delete()
        elif self.phase is Phase.DELETE:
            self._out.append(m.StopStep())
            self._finish(left=f"not confirmed deleted within {self._deadlines.deletion_s:g} s")
        elif self._settle is not None and (
            self._now >= self._settle[0] or isinstance(self._settle[1], ev.ProxyExited)
        ):
            # (An end that is known is the reason why another deadline was missed.)
            self._fail(self._error_of(self._settle[1]), self._settle[1])
        elif self._deadlines.limits_queue:
            self._fail(failures.when_out_of_queue(self.request, self._view.known))
        else:
            self._fail(
                failures.when_out_of_time(
                    self.request, self.snapshot, self._last_event, self._waited_for
                )
            )

    def _enter(self, phase: Phase, *effects: m.Effect) -> None:
        before = self.phase
        if before is not Phase.NEW:
            took = self._now - self._phase_began
            self._view.set(timings={**self._view.known.timings, before.value: took})
            if before in RISING and phase not in ENDING:
                self._announce(_DONE[before](duration_s=took))
        self._phase_began = self._now
        self._view.set(phase=phase)
        if phase in _STARTED:
            self._announce(_STARTED[phase]())
        self._out.extend(effects)

    def _announce(self, event: Event) -> None:
        self._out.append(m.Announce(event=event))

    def _taken(self) -> list[m.Effect]:
        out, self._out = self._out, []
        return out


def _settling_s(broken: ev.TunnelBroken) -> float:
    """Returns for how many seconds the proxy's end may be reported after its broken tunnel."""
    if broken.was_resumable and not failures.is_denial(broken):
        return LINK_SETTLE_S
    return 0.0 if broken.final else TUNNEL_SETTLE_S
