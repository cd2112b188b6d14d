"""The home in a cluster: a proxy is a Job, reached through the API server's port-forward."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import AsyncIterator, Sequence

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cluster_state.console_links import log_link
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events import session as ev
from shared_pathways_service.homes.base import (
    HomeCounters,
    ProxyHandle,
    ServiceInfo,
    Tell,
)
from shared_pathways_service.homes.kubernetes.api_user import api_user
from shared_pathways_service.homes.kubernetes.deadline import DeadlineKeeper
from shared_pathways_service.homes.kubernetes.error_translation import (
    after_creating,
    before_creating,
)
from shared_pathways_service.homes.kubernetes.job_inputs import proxy_job_inputs
from shared_pathways_service.homes.kubernetes.manager_link import ManagerLink
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.homes.kubernetes.proxy_objects import (
    create_job,
    create_mounted,
    find_own_job,
)
from shared_pathways_service.homes.kubernetes.proxy_tunnel import LinkTerms, ProxyTunnel
from shared_pathways_service.homes.kubernetes.proxy_watch import ProxyFollower
from shared_pathways_service.homes.kubernetes.release import release_slices
from shared_pathways_service.homes.kubernetes.service_watch import find_failure
from shared_pathways_service.homes.manager_news import ManagerNews
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice
from shared_pathways_service.kube.paths import item, pod_log
from shared_pathways_service.manifests.lifetime import deadline_ahead_s, keep_for_within
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.runtime.processes import Identity
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.tunnel.counters import LinkCounters, TunnelCounters
from shared_pathways_service.tunnel.places import remove_abandoned

__all__ = ["KubernetesHome"]

_TOKEN_BYTES = 32
_LAST_EVENTS = (ev.ProxyExited, ev.ProxyDeleted, ev.HomeLost)

_log = logging.getLogger(__name__)


class KubernetesHome:
    """A service in a cluster, used by one user.

    Args:
      namespace: The namespace of the service and of created objects.
      cluster: A GKE cluster, with its `project` and `region`; empty: `context`.
      project: See `cluster`.
      region: See `cluster`.
      context: A context of the kubeconfig; empty: the ambient cluster.
      kubeconfig: Files that are searched first for the context.
      in_cluster: Whether the cluster is the one around this pod.
      server: URL that the API server must have; empty: any.
      access: To the cluster, from the program; None: by the arguments above.
      pathways_service: ``host:port`` of the resource manager; empty: the only service.
      **settings: Settings by name, as for `Settings.load`.
    """

    name = "kubernetes"

    def __init__(
        self,
        *,
        namespace: str,
        cluster: str = "",
        project: str = "",
        region: str = "",
        context: str = "",
        kubeconfig: Sequence[str] = (),
        in_cluster: bool = False,
        server: str = "",
        access: ClusterAccess | None = None,
        pathways_service: str = "",
        **settings: object,
    ) -> None:
        self._settings = Settings.load(**settings)  # type: ignore[arg-type]
        self._choice = ClusterChoice(
            cluster=cluster,
            project=project,
            region=region,
            context=context,
            kubeconfig=tuple(kubeconfig),
            in_cluster=in_cluster,
            server=server,
        )
        self._namespace = namespace
        self._address = pathways_service
        self._access = access
        self._api: KubeApi | None = None
        self._service: Service | None = None
        self._manager: ManagerLink | None = None
        self._priority = 0
        self._link: LinkInputs | None = None
        self._follower: ProxyFollower | None = None
        self._tunnel: ProxyTunnel | None = None
        self._news: ManagerNews | None = None
        self._keeper: DeadlineKeeper | None = None
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._tried: set[tuple[str, str]] = set()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._undo = contextlib.AsyncExitStack()

    async def preflight(self, request: SessionRequest, tell: Tell) -> ServiceInfo:
        """Finds the service, makes all checks, and waits until it is ready.

        Raises:
          AccessDenied: A permission is missing; all missing ones are listed.
          InvalidRequestError: The service has no such slices, or not enough, or the cluster has no
            such PriorityClass.
          PreflightError: The API server cannot be reached, or fails a request.
          ServiceNotFound: There is no such service, or more than one.
          ServiceNotReady: The service cannot become ready by itself, or its resource manager does
            not answer.
          VersionSkew: Client and service cannot work together.
        """
        with before_creating():
            api = await self._connected()
            ahead_s = deadline_ahead_s(request.keep_for_s, self._settings.proxy_deadline_s)
            link = LinkInputs(keep_s=ahead_s, image=self._settings.link_image)
            preflight = Preflight(api, self._namespace, self._address, link)
            readiness = await preflight.run(request, tell)
        self._priority, self._link = preflight.priority, preflight.link
        service = self._service = readiness.service
        if service.is_ours:
            head = readiness.head.name if readiness.head else ""
            self._manager = ManagerLink(
                api, service, runtime_dir=self._settings.runtime_dir, head=head
            )
            await self._manager.open()
            self._news = self._manager.listen(request.name)
            self._undo.push_async_callback(self._manager.close)
            # Listen before anything can happen, so that no event is missed.
            with before_creating():
                await self._manager.wait_until_listening(tell)
        return ServiceInfo(
            address=service.address,
            version=service.image,
            instance_types=tuple(service.instances),
            namespace=self._namespace,
        )

    async def create_proxy(
        self, request: SessionRequest, *, session: str, owner: Identity
    ) -> ProxyHandle:
        """Creates the Job, and what its pod mounts."""
        api, service = self._api, self._service
        assert api is not None, "call preflight first"
        assert service is not None, "call preflight first"
        tell = self._events.put_nowait
        default_s = self._settings.proxy_deadline_s
        keep_for_s = keep_for_within(
            request.keep_for_s, default_s=default_s, limit_s=service.max_keep_for_s
        )
        ahead_s = deadline_ahead_s(keep_for_s, default_s)
        if self._manager is not None:
            self._manager.news.follow(request.name, tell)
        inputs = proxy_job_inputs(
            dataclasses.replace(request, keep_for_s=keep_for_s),
            service,
            priority=self._priority,
            namespace=self._namespace,
            session=session,
            created_by_pid=owner.pid,
            ahead_s=ahead_s,
            link=self._link,
            user=await api_user(api) if service.audience else "",
        )
        with after_creating(request.name):
            job = await create_job(api, inputs)
            uid = str(job["metadata"]["uid"])
            await create_mounted(api, inputs, self._token, uid, tried=self._tried)
        silent = service if self._manager is None else None
        self._follower = ProxyFollower(
            api,
            self._namespace,
            inputs.tenant,
            job,
            tell=tell,
            silent_service=silent,
            # (A lost link is waited for as well.)
            patience_s=self._link.keep_s if self._link else 0.0,
        )
        keeper = self._keeper = DeadlineKeeper(
            api,
            item("jobs", self._namespace, request.name),
            uid=uid,
            ahead_s=ahead_s,
            max_lifetime_s=request.tenant.max_lifetime_s,
        )
        self._undo.push_async_callback(keeper.close)
        return ProxyHandle(
            name=request.name,
            uid=uid,
            token=self._token if inputs.has_token else None,
            log=log_link(api.access.project, self._choice.cluster, self._namespace, request.name),
            insecure_credentials=request.proxy_options.use_insecure_credentials,
            is_remote=True,
        )

    async def follow(self, handle: ProxyHandle) -> AsyncIterator[Event]:  # noqa: ARG002
        """Yields events of the Job, its pod and its slices, until the proxy ends."""
        follower = self._follower
        assert follower is not None, "call create_proxy first"
        following = asyncio.create_task(self._run_follower(follower))
        try:
            while True:
                event = await self._events.get()
                yield event
                if isinstance(event, _LAST_EVENTS):
                    break
            if self._tunnel is not None:
                self._tunnel.pod_died(event.reason or "")
            # The resource manager's events about the same end may be a moment late.
            with contextlib.suppress(TimeoutError):
                async with within(timeouts.LAST_EVENTS):
                    while not self._is_over or not self._events.empty():
                        yield await self._events.get()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def open_tunnel(
        self,
        handle: ProxyHandle,  # noqa: ARG002
        local_port: int | None,
    ) -> str:
        """Opens a tunnel to the proxy's pod."""
        api, follower, link = self._api, self._follower, self._link
        assert api is not None, "call preflight first"
        assert follower is not None, "call follow first"
        tunnel = self._tunnel = ProxyTunnel(
            api,
            self._namespace,
            follower.pod,
            link=LinkTerms(token=self._token, keep_s=link.keep_s) if link else None,
            runtime_dir=self._settings.runtime_dir,
            local_port=local_port,
            tell=self._events.put_nowait,
            on_resumed=self._keeper.extend_now if self._keeper else lambda: None,
        )
        self._undo.push_async_callback(tunnel.close)
        return await tunnel.open()

    async def service_failure(self, request: SessionRequest) -> SharedPathwaysError | None:
        """Returns why the service is not ready for the request any more."""
        if self._api is None or self._service is None:
            return None
        return await find_failure(self._api, self._service, request.tenant)

    async def logs(self, handle: ProxyHandle, lines: int) -> list[str]:  # noqa: ARG002
        """Returns the last lines of the pod's log; none without a pod."""
        if self._api is None or self._follower is None or not self._follower.pod:
            return []
        path = pod_log(self._namespace, self._follower.pod)
        stream = self._api.stream_lines(path, params={"tailLines": str(lines)})
        async with contextlib.aclosing(stream):
            return [line async for line in stream]

    async def delete_proxy(self, name: str, uid: str, session: str) -> bool:
        """Deletes this Job, and with it its pod and what that mounts."""
        api = await self._connected()
        if not uid:
            uid = await find_own_job(api, self._namespace, name, session)
        path = item("jobs", self._namespace, name)
        deleted = bool(uid) and await api.delete(path, uid=uid)
        if uid and self._manager is not None:
            try:
                async with self._manager.unless_refused():
                    await release_slices(api, self._namespace, self._manager.news, name, session)
            except SharedPathwaysError as error:
                # The resource manager releases the slices itself, some seconds later.
                _log.info("%s is not released: %s", name, error)
        return deleted

    def counters(self) -> HomeCounters:
        """Returns counters of the tunnel, of reconnections, and of the deadline."""
        tunnel = self._tunnel.counters if self._tunnel else TunnelCounters()
        link = self._tunnel.link_counters if self._tunnel else LinkCounters()
        return HomeCounters(
            tunnel_opened=tunnel.opened,
            tunnel_connections=tunnel.connections,
            tunnel_redials=tunnel.redials,
            tunnel_sent_bytes=tunnel.sent_bytes,
            tunnel_received_bytes=tunnel.received_bytes,
            link_losses=link.losses,
            link_carriers=link.carriers,
            link_failed_dials=link.failed_dials,
            link_replay_bytes=link.replay_bytes,
            link_early_answers=link.early_answers,
            manager_reconnects=self._news.reconnects if self._news else 0,
            beat_at=self._keeper.moved_at if self._keeper else None,
        )

    async def close(self) -> None:
        """Ends tunnels, watches, the deadline's extension, and all connections."""
        self._api = self._manager = None
        await self._undo.aclose()

    # ---- internals

    async def _connected(self) -> KubeApi:
        if self._api is None:
            remove_abandoned(self._settings.runtime_dir)
            # (Credentials that worked once are known to be valid.)
            self._access = self._access or await resolve(self._choice)
            self._api = KubeApi(self._access)
            # First, so that it is closed whatever else fails.
            self._undo.push_async_callback(self._api.close)
        return self._api

    @property
    def _is_over(self) -> bool:
        return self._manager is None or self._manager.news.tenant_is_over

    async def _run_follower(self, follower: ProxyFollower) -> None:
        lost = ev.HomeLost(reason="the proxy is no longer watched")
        try:
            await follower.run()
        except SharedPathwaysError as error:
            lost = ev.HomeLost(reason=str(error), error=error.to_json())
        except Exception as error:  # noqa: BLE001 - followers would wait for ever
            _log.exception("the view of pod %s failed", follower.pod)
            lost = ev.HomeLost(reason=f"{type(error).__name__}: {error}")
        # (Ignored if the proxy's end was reported before.)
        self._events.put_nowait(lost)
