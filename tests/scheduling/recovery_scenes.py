"""A service before its resource manager restarts, and tenants that come back to it."""

from __future__ import annotations

import math

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.scheduling.book import messages as m
from tests.scheduling.harness import SMALL, Rm


def busy() -> Rm:
    """Three slices: ada has two, bob one; eve and max wait."""
    rm = Rm(3)
    rm.ask("ada", 2)
    rm.ask("bob", 1)
    rm.ask("eve", 1, queue=math.inf)
    rm.ask("max", 1, priority=1, queue=math.inf)
    return rm


def all_join(rm: Rm) -> None:
    for index in range(3):
        rm.join(f"slice-{index}")


def waits_again(rm: Rm, tenant: str, *, queue: float | None = None) -> None:
    """The proxy of a tenant that was preempted before the state was lost comes back."""
    rm.asked[tenant] = m.TenantAsked(
        request=TenantRequest(
            name=tenant,
            virtual_slices=(SMALL,),
            queue_timeout_s=queue,
        ),
        incarnation=f"{tenant}/1",
        last_generation=1,
    )
    rm.come_back(tenant)
