"""Sessions with callbacks, and their streams."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.proxy.raw import RawClient
from tests.servers.proxy.callbacks.raw_callbacks import (
    NONCE,
    RawCallbacks,
)
from tests.servers.proxy.conftest import LocalProxy, MakeClient


@pytest.fixture
def session(proxy: LocalProxy, connect: MakeClient) -> RawClient:
    return connect(proxy.address, initialization_data={"sps_callbacks": NONCE})


@pytest.fixture
def stream(session: RawClient) -> Iterator[RawCallbacks]:
    with RawCallbacks(session) as callbacks:
        yield callbacks
