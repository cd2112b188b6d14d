"""Listens on a local socket, and forwards each connection over a link that outlives WebSockets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import LinkDialFailed, LinkLost, LinkResumed
from shared_pathways_service.runtime.machine_clock import machine_time
from shared_pathways_service.tunnel.counters import LinkCounters, TunnelCounters
from shared_pathways_service.tunnel.link.carriers import CarrierOwner
from shared_pathways_service.tunnel.link.near_end import LinkState, NearEnd, NearOptions
from shared_pathways_service.tunnel.local_listener import LocalListener
from shared_pathways_service.tunnel.relay import FailureKind, TunnelFailure, is_final
from shared_pathways_service.tunnel.websocket_carrier import WebSocketCarrier
from shared_pathways_service.tunnel.websocket_upgrade import Dial, upgraded

__all__ = ["ResumableRelay"]

_log = logging.getLogger(__name__)


class ResumableRelay:
    """Listens on this machine, and forwards every connection to the far end in a pod.

    The same for its owner as a `Relay`, whose connections end with their WebSockets.

    Args:
      dial: Opens one port-forward to the far end's port.
      pod: The pod's name, for errors.
      token: The token of the proxy's tenant.
      keep_s: Seconds for which the far end keeps the session without a WebSocket.
      runtime_dir: The directory for the Unix socket; created for this user only if it is missing.
      local_port: None: a Unix socket; otherwise a loopback TCP port, 0 for any.
      may_recover: Whether an established session waits after an error, e.g. of expired
        credentials, that would be final for a new one.
      on_event: Called with losses, failed dials and resumptions of an established session; must
        not block.
      on_failure: Called with the failure that ends the relay; must not block.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        pod: str,
        token: str,
        keep_s: float,
        runtime_dir: Path,
        local_port: int | None = None,
        may_recover: Callable[[BaseException], bool] = lambda _: False,
        on_event: Callable[[Event], object],
        on_failure: Callable[[TunnelFailure], object],
    ) -> None:
        self._dial = dial
        self._pod = pod
        self._may_recover = may_recover
        self._on_event = on_event
        self._on_failure = on_failure
        self._near = NearEnd(self._open, token.encode(), self, NearOptions(keep_s=keep_s))
        self._listener = LocalListener(runtime_dir, local_port, self._near.accept)
        self._has_ended = False
        self._attempts = 0
        # When the link was lost; None: it is not.
        self._lost_at: float | None = None
        self._refusal: BaseException | None = None

    async def start(self) -> str:
        """Listens and dials; returns and raises as `LocalListener.start`."""
        address = self._listener.start()
        self._near.start()
        return address

    def pod_died(self, reason: str) -> None:
        """Ends every connection at once and refuses later ones; calls `on_failure`."""
        message = f"pod {self._pod} has died: {reason}"
        self._end(FailureKind.POD_DIED, TunnelError(message, pod=self._pod, cause=reason))
        self._near.end(reason)

    async def close(self) -> None:
        """Ends every connection and stops listening; leaves no task, socket or file."""
        self._has_ended = True
        self._listener.close()
        await self._near.close()

    @property
    def counters(self) -> TunnelCounters:
        """Counters of forwarded data."""
        link = self._near.link
        return TunnelCounters(
            opened=link.opened,
            connections=len(link.connections),
            redials=self._near.redials,
            sent_bytes=link.sent_bytes,
            received_bytes=link.received_bytes,
        )

    @property
    def link_counters(self) -> LinkCounters:
        """Counters of the link."""
        return LinkCounters(
            losses=self._near.losses,
            carriers=self._near.carriers,
            failed_dials=self._near.failed_dials,
            replay_bytes=self._near.link.replay_bytes,
            early_answers=self._near.early_buffers.taken,
        )

    # ---- a near end's owner

    def is_final(self, error: Exception) -> bool:
        """Whether no later dial can succeed."""
        was_up = self._near.state in (LinkState.UP, LinkState.LOST)
        is_waiting = was_up and self._may_recover(error)
        self._refusal = error if is_final(error) and not is_waiting else None
        return self._refusal is not None

    def dial_failed(self, attempt: int, reason: str) -> None:
        """Reports a failed dial of an established session, and logs one of a new session."""
        if self._lost_at is None:
            _log.warning("no connection to pod %s: %s", self._pod, reason)
        else:
            self._attempts = attempt
            self._on_event(LinkDialFailed(attempt=attempt, reason=reason))

    def link_changed(self, state: LinkState, reason: str) -> None:
        """Reports a change."""
        if state is LinkState.LOST:
            self._lost_at, self._attempts = machine_time(), 0
            self._on_event(LinkLost(reason=reason))
        elif state is LinkState.OVER:
            self._over(reason)
        elif self._lost_at is not None:
            took = machine_time() - self._lost_at
            self._lost_at = None
            self._on_event(LinkResumed(duration_s=took, attempts=self._attempts + 1))

    # ---- internals

    async def _open(self, owner: CarrierOwner) -> None:
        WebSocketCarrier(owner, await upgraded(self._dial)).start()

    def _over(self, reason: str) -> None:
        message = f"the link to pod {self._pod} cannot be resumed: {reason}"
        failure = TunnelError(message, pod=self._pod, cause=reason)
        failure.__cause__ = self._refusal
        self._end(FailureKind.REFUSED if self._refusal else FailureKind.OVER, failure)

    def _end(self, kind: FailureKind, error: TunnelError) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._on_failure(TunnelFailure(kind=kind, error=error))
