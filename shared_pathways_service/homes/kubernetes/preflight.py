"""Makes all checks in a cluster before anything is created there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from shared_pathways_service.api.checks import Check, Outcome
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.cluster_state import preflight_checks
from shared_pathways_service.cluster_state.preflight_checks import Examined
from shared_pathways_service.cluster_state.readiness import ServiceReadiness
from shared_pathways_service.cluster_state.services import Service, find_service
from shared_pathways_service.errors import AccessDenied, ServiceNotFound, SharedPathwaysError
from shared_pathways_service.events import session as ev
from shared_pathways_service.homes.base import Tell
from shared_pathways_service.homes.kubernetes.link_check import check_link
from shared_pathways_service.homes.kubernetes.permissions_review import (
    check_permissions,
    review_rules,
)
from shared_pathways_service.homes.kubernetes.priority_values import read_priority
from shared_pathways_service.homes.kubernetes.request_checks import request_checks
from shared_pathways_service.homes.kubernetes.service_view import ServiceView
from shared_pathways_service.homes.kubernetes.service_watch import ServiceWatch, items_of
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.manifests.names import LABEL_JOBSET

__all__ = ["Preflight"]

Object = Mapping[str, Any]

_NOT_FOUND = 404


class Preflight:
    """Checks a service once, and may wait until it is ready.

    connect() and `sps doctor` make the same checks.

    Args:
      api: The API server.
      namespace: The namespace of the service.
      address: ``host:port`` of its resource manager; empty: the only service.
      link: The inputs of a resumable link, if one is requested.
    """

    def __init__(
        self, api: KubeApi, namespace: str, address: str, link: LinkInputs | None = None
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._address = address
        self._watch: ServiceWatch | None = None
        self._priority = 0
        self._link = link
        self._has_link = False

    @property
    def view(self) -> ServiceView | None:
        """The view of the service; None before it was found."""
        return None if self._watch is None else self._watch.view

    @property
    def priority(self) -> int:
        """The request's priority as the cluster defines it, once it was read."""
        return self._priority

    @property
    def link(self) -> LinkInputs | None:
        """The inputs of the request's resumable link; None: it is plain, or has to be."""
        return self._link if self._has_link else None

    async def run(self, request: SessionRequest, tell: Tell) -> ServiceReadiness:
        """Makes every check, and waits until enough slices are ready; the caller sets a deadline.

        Returns:
          The readiness of the service, which is enough for the request.

        Raises:
          AccessDenied: A permission is missing; all missing ones are listed.
          InvalidRequestError: The service has no such slices, or not enough, or no sidecar, or the
            cluster has no such PriorityClass.
          ServiceNotFound: There is no such service, or more than one.
          ServiceNotReady: The service cannot become ready by itself.
          VersionSkew: Client and service cannot work together.
        """
        with self._telling_troubles(tell):
            tenant, examined = request.tenant, await self._look(request)
        if (failure := examined.final_failure) is not None:
            raise failure
        for warning in examined.warnings:
            tell(ev.ServiceWarning(reason=warning))
        assert self._watch is not None, "all checks have passed"
        return await self._watch.wait_until(
            lambda found: found.suffices_for(tenant.type_names, tenant.elastic_slices), tell
        )

    async def wait_until_complete(self, tell: Tell) -> ServiceReadiness:
        """Waits until all of the service is ready, without other checks; needs only read access.

        Raises:
          ServiceNotFound: There is no such service, or more than one.
          ServiceNotReady: The service cannot become ready by itself.
        """
        jobsets, pods = await asyncio.gather(
            self._list("jobsets"), self._list("pods", labelSelector=LABEL_JOBSET)
        )
        service = find_service(items_of(jobsets), self._address, namespace=self._namespace)
        watch = self._watch = ServiceWatch(self._api, service, jobsets=jobsets, pods=pods)
        return await watch.wait_until(lambda found: found.complete, tell)

    async def examine(self, request: SessionRequest, within_s: float) -> Examined:
        """Makes every check once, whatever the others find.

        Args:
          request: The request; without slices: one slice of the service's first type.
          within_s: Seconds for all checks.
        """
        try:
            async with asyncio.timeout(within_s):
                examined = await self._look(request)
                if self.view is not None:
                    await self.view.find_reasons()
        except TimeoutError:
            trouble = self._api.trouble
            also = f": {trouble}" if trouble else ""
            error = ApiUnreachable(
                f"{self._api.access.server} did not answer within {within_s:g} s{also}",
                server=self._api.access.server,
                cause=trouble or "timed out",
            )
            examined = Examined()
            examined.add(Check.failed("API server", error))
            return examined
        if self.view is not None:
            self._add_readiness(examined, self.view.readiness, request.tenant)
        return examined

    # ---- the checks

    async def _look(self, request: SessionRequest) -> Examined:
        examined = Examined()
        priority, review, jobsets, pods = await asyncio.gather(
            self._read_priority(request),
            review_rules(self._api, self._namespace),
            self._list("jobsets"),
            self._list("pods", labelSelector=LABEL_JOBSET),
            return_exceptions=True,
        )
        examined.add(self._server_check(review, jobsets, pods))
        if examined.final_failure is not None:
            return examined
        # Report all missing permissions together, not only the first request that is refused.
        examined.add(await self._check_permissions(review, ours=False))
        check, service = self._service_check(jobsets)
        examined.add(check)
        if service is None or check.outcome is Outcome.FAILED:
            return examined
        if service.is_ours and examined.final_failure is None:
            examined.checks[-2] = await self._check_permissions(review, ours=True)
        examined.add(*self._priority_check(request, priority))
        examined.add(*request_checks(service, request))
        if self._link is not None and examined.final_failure is None:
            found = await check_link(self._api, review, request, service, self._link)
            self._has_link = bool(found) and found[0].outcome is Outcome.OK
            examined.add(*found)
        if isinstance(pods, BaseException):
            examined.add(_failed("resource manager", pods))
            return examined
        assert isinstance(jobsets, Mapping), "it has the service"
        self._watch = ServiceWatch(self._api, service, jobsets=jobsets, pods=pods)
        return examined

    async def _check_permissions(self, review: Object | BaseException, *, ours: bool) -> Check:
        return await check_permissions(self._api, self._namespace, review, ours=ours)

    def _server_check(self, *answers: Object | BaseException) -> Check:
        """Checks that the API server answers, and accepts our credentials."""
        for answer in answers:
            if isinstance(answer, ApiUnreachable):
                return Check.failed("API server", answer)
            if isinstance(answer, AccessDenied) and answer.resource == "cluster":
                return Check.failed("credentials", answer)
            if isinstance(answer, BaseException) and not isinstance(answer, SharedPathwaysError):
                raise answer
        access = self._api.access
        name = f"{access.name} at " if access.name else ""
        return Check(
            name="API server",
            outcome=Outcome.OK,
            found=f"{name}{access.server} accepts your credentials",
        )

    def _service_check(self, jobsets: Object | BaseException) -> tuple[Check, Service | None]:
        if isinstance(jobsets, ApiError) and jobsets.status == _NOT_FOUND:
            error = ServiceNotFound(
                "the cluster has no JobSets",
                hint="a service is a JobSet: install its controller (sigs.k8s.io/jobset)",
            )
            return Check.failed("service", error), None
        if isinstance(jobsets, BaseException):
            return _failed("service", jobsets), None
        return preflight_checks.service_check(
            items_of(jobsets), self._address, namespace=self._namespace
        )

    def _add_readiness(
        self, examined: Examined, found: ServiceReadiness, tenant: TenantRequest
    ) -> None:
        examined.service, examined.readiness = found.service, found
        examined.add(
            preflight_checks.head_check(found),
            preflight_checks.slices_check(found, tenant.type_names, tenant.elastic_slices),
        )

    # ---- priority

    async def _read_priority(self, request: SessionRequest) -> int:
        if not request.priority_class:
            return request.tenant.priority
        return await read_priority(self._api, request.priority_class)

    def _priority_check(self, request: SessionRequest, found: int | BaseException) -> list[Check]:
        """Checks the value of a named priority; no check without one."""
        if isinstance(found, BaseException):
            return [_failed("priority", found)]
        self._priority = found
        if not request.priority_class:
            return []
        value = f"{request.priority_class} is {found}"
        return [Check(name="priority", outcome=Outcome.OK, found=value)]

    @contextlib.contextmanager
    def _telling_troubles(self, tell: Tell) -> Iterator[None]:
        """Tells why requests are tried again in the block, each reason once."""
        told: set[str] = set()

        def on_trouble(trouble: str) -> None:
            if trouble not in told:
                told.add(trouble)
                server = self._api.access.server
                tell(ev.ServiceWaiting(reason=f"the API server {server} does not serve: {trouble}"))

        self._api.on_trouble = on_trouble
        try:
            yield
        finally:
            self._api.on_trouble = None

    async def _list(self, resource: str, **params: str) -> Object:
        return await self._api.get(collection(resource, self._namespace), params=params)


def _failed(name: str, error: BaseException) -> Check:
    if not isinstance(error, SharedPathwaysError):
        raise error
    return Check.failed(name, error)
