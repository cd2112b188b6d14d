"""Finds the tenants of a service, from their proxies' Jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.errors import SlicesTaken

__all__ = ["in_use", "tenants_of"]

_OVER = ("ended", "deleting")


def tenants_of(service: str, proxies: Iterable[KnownProxy]) -> list[KnownProxy]:
    """Returns the proxies of a service that run or may run, including ones of unknown services.

    Args:
      service: The service's name.
      proxies: All proxies of the namespace.
    """
    return [
        proxy
        for proxy in proxies
        if proxy.state not in _OVER and proxy.holder.service in ("", service)
    ]


def in_use(service: str, tenants: Sequence[KnownProxy], *, hint: str) -> SlicesTaken:
    """Returns the error for a service that has tenants, which it names.

    Args:
      service: The service's name.
      tenants: At least one.
      hint: The hint of the error.
    """
    named = [f"{proxy.name} ({proxy.holder})" for proxy in tenants]
    return SlicesTaken(
        f"the service {service} has {len(tenants)} connections: {', '.join(named)}",
        holders=[str(proxy.holder) for proxy in tenants],
        hint=hint,
    )
