"""A tenant's request is one thing in all its forms: each has every field, by the same name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.flags.tenants import (
    TenantOptions,
    slice_flags,
    tenant_flags,
    tenant_variables,
)
from shared_pathways_service.protocol import resource_manager_pb2, supervisor_pb2
from shared_pathways_service.protocol.tenant_pb2 import TenantRequest as TenantMessage
from shared_pathways_service.protocol.tenant_requests import (
    message_of,
    read_tenant_request,
    tenant_of,
    write_older_fields,
)
from tests.protocol.first_release import message

KIND = InstanceType.parse("tpuv6e:2x2")
#: No field has its default.
FULL = TenantRequest(
    name="isc-proxy-ada",
    virtual_slices=(KIND, InstanceType.parse("tpuv4:2x2x1")),
    elastic_slices=1,
    priority=-7,
    queue_timeout_s=math.inf,
    max_lifetime_s=12_345_678.25,
    user="ada",
    team="research",
    host="laptop",
)
LEAST = TenantRequest(name="a", virtual_slices=(KIND,))
#: Messages that contain a tenant's request.
CARRIERS: list[Any] = [resource_manager_pb2.TenantHello, supervisor_pb2.CreateProxyRequest]


def older(carrier: Any, request: TenantRequest) -> Any:
    """Returns a request in a message of the first release."""
    made = message(carrier.DESCRIPTOR.name)
    values = request.to_json()
    renamed = {"tenant": "name", "num_elastic_slices": "elastic_slices"}
    fields = {name: values.get(renamed.get(name, name)) for name in made.DESCRIPTOR.fields_by_name}
    return message(carrier.DESCRIPTOR.name, **fields)


def known_to_older(carrier: Any, request: TenantRequest) -> TenantRequest:
    """Returns a request without what the first release had no field for."""
    if "max_lifetime_s" in message(carrier.DESCRIPTOR.name).DESCRIPTOR.fields_by_name:
        return request
    return dataclasses.replace(request, max_lifetime_s=None)


def test_the_sample_has_no_default() -> None:
    for field in dataclasses.fields(TenantRequest):
        assert getattr(FULL, field.name) != field.default


def test_the_message_and_its_carriers_have_the_fields_of_the_request() -> None:
    names = [field.name for field in dataclasses.fields(TenantRequest)]
    assert [field.name for field in TenantMessage.DESCRIPTOR.fields] == names
    for carrier in CARRIERS:
        assert set(names) < set(carrier.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("request_", [FULL, LEAST])
def test_every_field_travels_as_a_message(request_: TenantRequest) -> None:
    sent = TenantMessage.FromString(message_of(request_).SerializeToString())
    assert read_tenant_request(sent) == request_


@pytest.mark.parametrize("request_", [FULL, LEAST])
def test_every_field_travels_as_flags(request_: TenantRequest) -> None:
    options = parse_flags(TenantOptions, tenant_flags(request_), {})
    assert options.tenant_request(default_name="none") == request_
    # A cluster's Job has flags that Google's proxies know, and variables.
    options = parse_flags(TenantOptions, slice_flags(request_), tenant_variables(request_))
    assert options.tenant_request(default_name="none") == request_


@pytest.mark.parametrize("request_", [FULL, LEAST])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_message_of_the_first_release_is_understood(
    carrier: Any, request_: TenantRequest
) -> None:
    sent = older(carrier, request_).SerializeToString()
    received = read_tenant_request(tenant_of(carrier.FromString(sent)))
    assert received == known_to_older(carrier, request_)


@pytest.mark.parametrize("request_", [FULL, LEAST])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_first_release_understands_a_message(carrier: Any, request_: TenantRequest) -> None:
    sent = carrier(tenant=message_of(request_))
    write_older_fields(sent)
    assert tenant_of(sent) == message_of(request_)
    received = message(carrier.DESCRIPTOR.name)
    received.ParseFromString(sent.SerializeToString())
    received.DiscardUnknownFields()
    assert received == older(carrier, request_)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Not_A_Label"),
        ("virtual_slices", []),
        ("virtual_slices", [str(KIND)] * 5000),
        ("virtual_slices", ["v6e"]),
        ("elastic_slices", 2),
        ("queue_timeout_s", math.nan),
        ("max_lifetime_s", math.inf),
        ("user", "two\nlines"),
        ("team", "t" * 300),
        ("host", "\x00"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    wrong = TenantMessage(**{**FULL.to_json(), field: value})
    with pytest.raises(InvalidRequestError) as caught:
        read_tenant_request(wrong)
    assert caught.value.field == field
