"""XLA's clients for sets of slices: as many as are in use, and no more than there may be."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent import futures

import psutil
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.programs import compile_options, sharded_double
from harness.proxy.raw import split
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.interface import DeviceClient
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.engine.programs import Compiler
from shared_pathways_service.servers.xla import clients
from shared_pathways_service.servers.xla.shardings import Placings
from shared_pathways_service.servers.xla.xla import XlaClient
from tests.servers.proxy.conftest import wait_until

MOST = 3
PAIRS = list(itertools.combinations(range(5), 2))


@pytest.fixture
def placings(monkeypatch: pytest.MonkeyPatch) -> Placings:
    """Of five slices of a device each."""
    monkeypatch.setattr(clients, "_MOST_SETS", MOST)
    return Placings(range(5))


def threads() -> set[int]:
    return {thread.id for thread in psutil.Process().threads()}


def test_sets_that_nothing_uses_any_more_are_let_go(placings: Placings) -> None:
    before = threads()
    placings.from_wire(split(PAIRS[0])).pieces((8,))
    # (Of the others some may end meanwhile.)
    a_client = len(threads() - before)
    assert a_client > 0
    for pair in PAIRS[1:]:
        placings.from_wire(split(pair)).pieces((8,))
    wait_until(lambda: len(threads() - before) <= MOST * a_client)


def test_sets_in_use_are_limited_and_stay(placings: Placings) -> None:
    held = [placings.from_wire(split(pair)) for pair in PAIRS[: MOST - 1]]
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options(PAIRS[MOST - 1]))
    program = Compiler(placings).compile(sharded_double(2).encode(), options.SerializeToString())
    for _ in range(2):
        with pytest.raises(StatusError, match="on 3 different sets of several slices") as raised:
            placings.from_wire(split(PAIRS[MOST]))
        assert raised.value.code is Code.RESOURCE_EXHAUSTED
    # Who uses them still gets the same, and single slices have theirs.
    for placing in held:
        assert placings.from_wire(placing.proto).client is placing.client
    assert placings.client(PAIRS[MOST - 1]) is program.client
    assert placings.single(4).client is placings.client((4,))
    del program
    placings.from_wire(split(PAIRS[MOST]))


def test_a_client_that_is_slow_to_make_delays_only_its_own_users() -> None:
    started, go_on = threading.Event(), threading.Event()
    made: list[tuple[int, ...]] = []

    def make(device_ids: Sequence[int], slices: tuple[int, ...]) -> DeviceClient:
        made.append(slices)
        if slices == (0,):
            started.set()
            assert go_on.wait(DEADLINE_S)
        if slices == (1,):
            raise StatusError(Code.UNAVAILABLE, "not now")
        return XlaClient(device_ids)

    placings = Placings(range(5), make=make)
    with futures.ThreadPoolExecutor(2) as threads:
        slow = [threads.submit(placings.client, (0,)) for _ in range(2)]
        assert started.wait(DEADLINE_S)
        assert placings.client((2,)) is placings.client((2,))
        # One that cannot be made is tried again.
        for _ in range(2):
            with pytest.raises(StatusError, match="not now"):
                placings.client((1,))
        go_on.set()
        first, second = (future.result(DEADLINE_S) for future in slow)
    assert first is second
    assert made == [(0,), (2,), (1,), (1,)]
