"""The way from this machine to a proxy's pod: resumable, or plain port-forwards."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp

from shared_pathways_service.constants import LINK_PORT, PROXY_PORT
from shared_pathways_service.errors import AccessDenied, InvalidRequestError, SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events import session as ev
from shared_pathways_service.homes.base import Tell
from shared_pathways_service.homes.kubernetes.dial import dial_pod
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import CONNECT_VERB, ApiUnreachable
from shared_pathways_service.tunnel.counters import LinkCounters, TunnelCounters
from shared_pathways_service.tunnel.relay import FailureKind, Relay, TunnelFailure
from shared_pathways_service.tunnel.resumable_relay import ResumableRelay

__all__ = ["LinkTerms", "ProxyTunnel"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkTerms:
    """What a resumable link needs.

    Attributes:
      token: The token of the proxy's tenant.
      keep_s: Seconds for which the far end keeps the session without a connection.
    """

    token: str = dataclasses.field(repr=False)
    keep_s: float


class ProxyTunnel:
    """Forwards a local socket to a proxy. Call `open` first, and `close` at the end.

    Args:
      api: The API server.
      namespace: The namespace of the pod.
      pod: Its name.
      link: None: the way is plain.
      runtime_dir: The directory for the local socket.
      local_port: A loopback port instead; 0: any.
      tell: Called with events of the link, and with a `TunnelBroken` when open connections broke.
      on_resumed: Called when the link works again.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        pod: str,
        *,
        link: LinkTerms | None,
        runtime_dir: Path,
        local_port: int | None,
        tell: Tell,
        on_resumed: Callable[[], object],
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._pod = pod
        self._local_port = local_port
        self._tell = tell
        self._on_resumed = on_resumed
        self._relay: Relay | ResumableRelay
        if link is None:
            self._port = PROXY_PORT
            self._relay = Relay(
                self._dial,
                pod=pod,
                runtime_dir=runtime_dir,
                local_port=local_port,
                on_failure=self._on_failure,
            )
        else:
            self._port = LINK_PORT
            self._relay = ResumableRelay(
                self._dial,
                pod=pod,
                token=link.token,
                keep_s=link.keep_s,
                runtime_dir=runtime_dir,
                local_port=local_port,
                may_recover=_may_recover,
                on_event=self._on_link_event,
                on_failure=self._on_failure,
            )

    async def open(self) -> str:
        """Listens.

        Returns:
          ``unix:/path`` or ``127.0.0.1:port``.

        Raises:
          InvalidRequestError: The port is taken.
        """
        try:
            return await self._relay.start()
        except OSError as error:
            raise InvalidRequestError(
                "local_port",
                self._local_port,
                f"a free loopback port ({error.strerror or error})",
                hint="use another port, or 0 for any",
            ) from error

    def pod_died(self, reason: str) -> None:
        """Ends every connection at once."""
        self._relay.pod_died(reason)

    async def close(self) -> None:
        """Ends every connection and stops listening."""
        await self._relay.close()

    @property
    def counters(self) -> TunnelCounters:
        """Counters of forwarded data."""
        return self._relay.counters

    @property
    def link_counters(self) -> LinkCounters:
        """Counters of the link; 0 if the way is plain."""
        relay = self._relay
        return relay.link_counters if isinstance(relay, ResumableRelay) else LinkCounters()

    async def _dial(self, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        return await dial_pod(self._api, self._namespace, self._pod, self._port, headers)

    def _on_link_event(self, event: Event) -> None:
        self._tell(event)
        if isinstance(event, ev.LinkResumed):
            self._on_resumed()

    def _on_failure(self, failure: TunnelFailure) -> None:
        _log.warning("%s", failure.error)
        # The probe retries a pod that does not accept connections yet, and the watch notices the
        # end of one that did.
        if failure.kind not in (FailureKind.BROKEN, FailureKind.REFUSED, FailureKind.OVER):
            return
        cause = failure.error.__cause__
        self._tell(
            ev.TunnelBroken(
                reason=failure.error.cause or str(failure.error),
                error=cause.to_json() if isinstance(cause, SharedPathwaysError) else {},
                final=failure.is_final,
                was_resumable=isinstance(self._relay, ResumableRelay) or None,
            )
        )


def _may_recover(error: BaseException) -> bool:
    # Expired credentials, which their owner may renew, and a network that answers in the API
    # server's place, with a certificate of its own.
    is_expired = isinstance(error, AccessDenied) and error.verb == CONNECT_VERB
    return is_expired or isinstance(error, ApiUnreachable)
