"""Translates measurements to and from the messages of a proxy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from shared_pathways_service.metrics.families import Family, Kind, Sample
from shared_pathways_service.protocol import proxy_status_pb2 as pb

__all__ = ["METHOD", "SERVICE", "families_of", "message_of"]

SERVICE = pb.DESCRIPTOR.services_by_name["ProxyStatus"].full_name
METHOD = "GetCounters"


def message_of(families: Iterable[Family]) -> pb.GetCountersResponse:
    """Returns the answer with these families."""
    response = pb.GetCountersResponse()
    for family in families:
        message = response.families.add(
            name=family.name, kind=family.kind, unit=family.unit, help=family.help
        )
        for sample in family.samples:
            message.samples.add(value=sample.value, labels=sample.labels)
    return response


def families_of(response: pb.GetCountersResponse) -> list[Family]:
    """Returns the families of an answer."""
    return [
        Family(
            message.name,
            cast("Kind", message.kind),
            message.help,
            [Sample(sample.value, dict(sample.labels)) for sample in message.samples],
            message.unit,
        )
        for message in response.families
    ]
