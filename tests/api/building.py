"""Requests built from keywords of connect(), and refusals of them."""

from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.api.requests import (
    Requester,
    SessionRequest,
)
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError

ADA = Requester(user="ada", host="laptop", suffix="x7k2p")
SMALL = InstanceType.parse("tpuv6e:2x2")


def build(**keywords: Any) -> SessionRequest:
    return SessionRequest.build(ADA, **keywords)


def refusal(**keywords: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        build(**keywords)
    return caught.value
