"""Converts tenants' requests to messages, and checks the messages that a server receives."""

from __future__ import annotations

from typing import Any, TypeVar

from shared_pathways_service.api.instances import MAX_SLICES
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import (
    check_dns_label,
    check_int,
    check_seconds,
    check_text,
)
from shared_pathways_service.constants import LONGEST_LIFETIME_S
from shared_pathways_service.protocol import resource_manager_pb2, supervisor_pb2
from shared_pathways_service.protocol.tenant_pb2 import TenantRequest as TenantMessage

__all__ = ["message_of", "read_tenant_request", "tenant_of", "write_older_fields"]

#: The messages that carry a tenant's request.
Carrier = TypeVar("Carrier", resource_manager_pb2.TenantHello, supervisor_pb2.CreateProxyRequest)

_FIELDS = frozenset(TenantMessage.DESCRIPTOR.fields_by_name)


def message_of(request: TenantRequest) -> TenantMessage:
    """Returns a tenant's request as a message."""
    return TenantMessage(**request.to_json())


def write_older_fields(carrier: Carrier) -> None:
    """Repeats `carrier.tenant` in the fields that servers of the first release read.

    That release had no message for the request; the carriers themselves had the same fields.
    """
    fields: dict[str, Any] = {field.name: value for field, value in carrier.tenant.ListFields()}
    carrier.MergeFrom(type(carrier)(**fields))


def tenant_of(carrier: Carrier) -> TenantMessage:
    """Returns the tenant's request, also from a client of the first release."""
    if carrier.HasField("tenant"):
        return carrier.tenant
    fields = {field.name: value for field, value in carrier.ListFields() if field.name in _FIELDS}
    return TenantMessage(**fields)


def read_tenant_request(message: TenantMessage) -> TenantRequest:
    """Checks a request that a server received.

    Raises:
      InvalidRequestError: A field has an invalid value; `field` names it.
    """
    count = check_int("virtual_slices", len(message.virtual_slices), low=1, high=MAX_SLICES)
    queue_timeout = lifetime = None
    if message.HasField("queue_timeout_s"):
        queue_timeout = check_seconds("queue_timeout_s", message.queue_timeout_s, infinity=True)
    if message.HasField("max_lifetime_s"):
        lifetime = check_seconds("max_lifetime_s", message.max_lifetime_s, high=LONGEST_LIFETIME_S)
    return TenantRequest(
        name=check_dns_label("name", message.name),
        virtual_slices=tuple(
            InstanceType.parse(text, field="virtual_slices") for text in message.virtual_slices
        ),
        elastic_slices=check_int("elastic_slices", message.elastic_slices, low=0, high=count - 1),
        priority=message.priority,
        queue_timeout_s=queue_timeout,
        max_lifetime_s=lifetime,
        user=check_text("user", message.user),
        team=check_text("team", message.team),
        host=check_text("host", message.host),
    )
