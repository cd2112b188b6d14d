"""Messages that contain a tenant's request, from fields that are given side by side."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.protocol import resource_manager_pb2, supervisor_pb2
from shared_pathways_service.protocol.tenant_pb2 import TenantRequest

__all__ = ["create_proxy", "hello"]


def hello(**fields: Any) -> resource_manager_pb2.TenantHello:
    """Returns a proxy's hello; fields of the tenant's request are put into `tenant`."""
    return resource_manager_pb2.TenantHello(**_split(fields))


def create_proxy(**fields: Any) -> supervisor_pb2.CreateProxyRequest:
    """Returns a request for a proxy; fields of the tenant's request are put into `tenant`."""
    return supervisor_pb2.CreateProxyRequest(**_split(fields))


def _split(fields: dict[str, Any]) -> dict[str, Any]:
    names = TenantRequest.DESCRIPTOR.fields_by_name
    tenant = {name: value for name, value in fields.items() if name in names}
    rest = {name: value for name, value in fields.items() if name not in names}
    return {"tenant": TenantRequest(**tenant), **rest}
