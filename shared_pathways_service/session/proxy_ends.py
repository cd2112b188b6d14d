"""Chooses the error of a session whose proxy has ended."""

from __future__ import annotations

from collections.abc import Sequence

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import (
    CapacityError,
    ProxyFailed,
    SharedPathwaysError,
    from_json,
)
from shared_pathways_service.events import session as ev
from shared_pathways_service.runtime.known_errors import find_known_error

__all__ = ["is_own_end", "no_room", "when_exited", "when_service_failed", "with_log_tail"]

#: Hints by outcome (`ProxyExited.outcome`), for proxies that ended before they ran.
_UNSTARTED = {
    "image": "name an image that the cluster can pull as proxy_server_image=",
    "config": "have what its pod needs and the reason names put into the namespace",
    "link": "name an image that has Python 3.11 or later and that the cluster can pull as "
    'SPS_LINK_IMAGE=, or connect with link="plain"',
    "forbidden": "have the namespace's policies admit it, or leave out what they forbid of "
    "proxy_options=",
}

#: Outcomes that the proxy itself did not cause.
_TAKEN = {
    "pod_deleted": "lost its pod, which was deleted",
    "evicted": "was taken away",
    "node_lost": "went with its node",
    "deadline": "was ended",
}
#: Outcomes of a cluster's proxy that its service may have caused.
_OWN = ("crashed", "completed")


def no_room(name: str, reason: str) -> CapacityError:
    """Returns the error for a proxy that does not fit into the namespace's quota."""
    return CapacityError(
        f"the namespace's quota leaves no room for the proxy {name}: {reason}",
        hint="end other work of the namespace, or have its quota raised",
    )


def is_own_end(event: ev.ProxyExited) -> bool:
    """Whether a proxy in a cluster ended by itself, maybe because its service fails."""
    return event.outcome in _OWN


def when_exited(
    request: SessionRequest, event: ev.ProxyExited, *, served: bool
) -> SharedPathwaysError:
    """Returns the error for a proxy that ended; once it has `served`, JAX may be attached to it."""
    outcome = event.outcome or ""
    if outcome == "quota":
        return no_room(request.name, event.reason or "")
    if not _has_run(event):
        return ProxyFailed(
            f"the proxy {request.name} cannot be started: {event.reason}",
            hint=_UNSTARTED.get(outcome, "connect again once that is fixed"),
        )
    why = _why(event.reason, event.exit_code)
    error = ProxyFailed(
        f"the proxy {request.name} {_TAKEN.get(outcome, 'ended by itself')}: {why}",
        exit_code=event.exit_code,
        log_tail=event.log_tail,
        hint="what was on its slices is lost; connect again"
        if served
        else "log_tail has the end of its log; connect again once that is fixed",
    )
    return with_log_tail(error, event.log_tail, event)


def when_service_failed(
    failure: SharedPathwaysError, end: SharedPathwaysError
) -> SharedPathwaysError:
    """Returns the error for a service that fails, with the end of a proxy that did not serve."""
    return from_json({**failure.to_json(), "message": f"{failure.message}; {end.message}"})


def with_log_tail(
    error: ProxyFailed, log_tail: Sequence[str], end: ev.ProxyLost | None
) -> ProxyFailed:
    """Returns the error with the end of the proxy's log, and with the cause that it shows.

    The log shows the cause only if the proxy ended by itself: a signal of another cause is in it,
    too.
    """
    known = find_known_error("\n".join(log_tail)) if _ended_by_itself(end) else None
    return ProxyFailed(
        error.message if known is None else f"{error.message}: {known.cause}",
        exit_code=error.exit_code,
        log_tail=log_tail,
        hint=error.hint if known is None else known.hint,
    )


def _has_run(end: ev.ProxyExited) -> bool:
    # (On this machine one without an exit code never ran. In a cluster there is an outcome.)
    return end.outcome not in _UNSTARTED if end.outcome else end.exit_code is not None


def _ended_by_itself(end: ev.ProxyLost | None) -> bool:
    return isinstance(end, ev.ProxyExited) and _has_run(end) and end.outcome not in _TAKEN


def _why(reason: str | None, exit_code: int | None) -> str:
    if reason:
        return reason
    if exit_code is None:
        return "no exit code is known"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
