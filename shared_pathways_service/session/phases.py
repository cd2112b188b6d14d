"""Groups of a session's phases, and the events that report phases."""

from __future__ import annotations

from collections.abc import Mapping

from shared_pathways_service.events import Event
from shared_pathways_service.events import session as ev
from shared_pathways_service.session.messages import Phase

__all__ = ["BEFORE_JAX", "DONE_EVENTS", "ENDING", "RISING", "STARTED_EVENTS"]

#: Phases before `SERVE`.
RISING = (Phase.PREFLIGHT, Phase.CREATE, Phase.START, Phase.TUNNEL, Phase.PROBE, Phase.PLACE)
#: Phases in which JAX is not attached to the proxy yet.
BEFORE_JAX = (Phase.START, Phase.TUNNEL, Phase.PROBE)
#: Phases after the decision to end.
ENDING = (Phase.UNDO, Phase.DELETE, Phase.CLOSED, Phase.FAILED)

#: Events of steps, by the phase that begins or ends.
STARTED_EVENTS: Mapping[Phase, type[Event]] = {
    Phase.PREFLIGHT: ev.PreflightStarted,
    Phase.CREATE: ev.CreateStarted,
    Phase.START: ev.StartStarted,
    Phase.TUNNEL: ev.TunnelStarted,
    Phase.PROBE: ev.ProbeStarted,
    Phase.PLACE: ev.PlaceStarted,
    Phase.DELETE: ev.DeleteStarted,
}
DONE_EVENTS: Mapping[Phase, type[Event]] = {
    Phase.PREFLIGHT: ev.PreflightDone,
    Phase.CREATE: ev.CreateDone,
    Phase.START: ev.StartDone,
    Phase.TUNNEL: ev.TunnelDone,
    Phase.PROBE: ev.ProbeDone,
    Phase.PLACE: ev.PlaceDone,
}
