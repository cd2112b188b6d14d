"""Requests of sessions and objects made from them, for tests without connect()."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from shared_pathways_service.api.requests import Requester, SessionRequest
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs

__all__ = ["job_inputs", "session_request", "tenant_request", "with_fields"]

_KIND = "tpuv6e:2x2"
_TENANT_FIELDS = frozenset(field.name for field in dataclasses.fields(TenantRequest))


def session_request(
    name: str = "isc-proxy-ada", *kinds: str, host: str = "laptop", **keywords: Any
) -> SessionRequest:
    """Returns the request of a session of ada's.

    Args:
      name: The session's name.
      *kinds: The type of each virtual slice; none: one of a common type.
      host: The machine of the user.
      **keywords: Others of connect().
    """
    slices = {"expected_tpu_instances": Counter(kinds or (_KIND,))}
    ada = Requester(user="ada", host=host, suffix="x7k2p")
    return SessionRequest.build(ada, proxy_job_name=name, **{**slices, **keywords})


def tenant_request(name: str, *kinds: str, **fields: Any) -> TenantRequest:
    """Returns the request of a tenant, of one virtual slice by default."""
    slices = tuple(map(InstanceType.parse, kinds or (_KIND,)))
    return TenantRequest(name=name, virtual_slices=slices, **fields)


def job_inputs(**fields: Any) -> ProxyJobInputs:
    """Returns the inputs of a proxy's Job; fields of the tenant's request are keywords too."""
    tenant, others = _split(fields)
    kinds = map(InstanceType.parse, tenant.pop("virtual_slices", (_KIND,)))
    return ProxyJobInputs(tenant=TenantRequest(virtual_slices=tuple(kinds), **tenant), **others)


def with_fields(inputs: ProxyJobInputs, **fields: Any) -> ProxyJobInputs:
    """Returns inputs with other fields, among them fields of the tenant's request."""
    tenant, others = _split(fields)
    return dataclasses.replace(
        inputs, tenant=dataclasses.replace(inputs.tenant, **tenant), **others
    )


def _split(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    tenant = {name: value for name, value in fields.items() if name in _TENANT_FIELDS}
    return tenant, {name: value for name, value in fields.items() if name not in tenant}
