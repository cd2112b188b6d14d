"""Connections whose service and JAX are stand-ins."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared_pathways_service import (
    jax_client,
)
from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.connection import connection as connection_module
from tests.agent.fake_agent import COMMAND
from tests.connection.bench import Attachments, Bench


@pytest.fixture
def bench(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    attachments = Attachments()
    bench = Bench(own_directories, attachments)
    session = functools.partial(AgentSession, command=COMMAND)
    monkeypatch.setattr(connection_module, "AgentSession", session)
    monkeypatch.setattr(connection_module, "start_of", bench.orders)
    monkeypatch.setattr(jax_client, "attach", attachments.attach)
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    yield bench
    assert attachments.live == 0
    assert bench.is_clean()
