"""What our proxy writes is what the parser reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared_pathways_service.cluster_state.log_lines import LogEvent, LogKind, parse_line
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.servers.proxy.execution.virtual_slices import (
    Epoch,
    SliceChange,
    SliceTable,
)
from shared_pathways_service.servers.proxy.exits import EXIT_REFUSED, Ending
from shared_pathways_service.servers.proxy.rm_link import ResourceManagerLink, log_change

Written = Callable[[], list[LogEvent]]


@pytest.fixture
def written(capfd: pytest.CaptureFixture[str]) -> Written:
    def read() -> list[LogEvent]:
        lines = capfd.readouterr().err.splitlines()
        return [event for line in lines if (event := parse_line(line)) is not None]

    return read


@pytest.fixture
def hear() -> Callable[[pb.TenantUpdate], None]:
    """What the proxy does with an update; nobody is called, and nothing is placed."""

    def no_executor(epoch: Epoch) -> object:
        raise AssertionError(f"slice {epoch.index} is not to be placed")

    table = SliceTable(("tpuv6e:2x2",), no_executor)  # type: ignore[arg-type]
    return ResourceManagerLink("localhost:1", pb.TenantHello(), table, Ending(""), None).on_message


def test_transitions(written: Written) -> None:
    out, first, second = Epoch(1, None, ""), Epoch(1, 7, "slice-0"), Epoch(1, 8, "slice-2")
    log_change(SliceChange(index=1, old=out, new=first, reason=""))
    log_change(SliceChange(index=1, old=first, new=second, reason="a worker died"))
    log_change(SliceChange(index=1, old=second, new=out, reason="drained"))
    told = [(e.kind, e.index, e.slice_id, e.generation, e.reason) for e in written()]
    assert told == [
        (LogKind.PLACED, 1, "slice-0", 7, ""),
        (LogKind.UNPLACED, 1, "", None, "a worker died"),
        (LogKind.PLACED, 1, "slice-2", 8, ""),
        (LogKind.UNPLACED, 1, "", None, "drained"),
    ]


def test_the_queue(written: Written, hear: Callable[[pb.TenantUpdate], None]) -> None:
    queued = pb.TenantQueued(position=3, reason="all are taken", holders=["a@b: 1 x T", "c: 2 x T"])
    hear(pb.TenantUpdate(queued=queued))
    hear(pb.TenantUpdate(running=pb.TenantRunning(placed=1, wanted=2)))
    waiting, running = written()
    assert (waiting.kind, waiting.count) == (LogKind.QUEUED, 3)
    assert waiting.reason == "all are taken"
    assert waiting.holders == ("a@b: 1 x T", "c: 2 x T")
    assert (running.kind, running.count, running.wanted) == (LogKind.ALL_PLACED, 1, 2)


def test_a_refusal(written: Written, hear: Callable[[pb.TenantUpdate], None]) -> None:
    refused = pb.TenantRefused(kind=pb.TenantRefused.SLICES_TAKEN, message="2 of 2 are taken")
    hear(pb.TenantUpdate(refused=refused))
    refusal, ending = written()
    assert (refusal.kind, refusal.reason) == (LogKind.REFUSED, "2 of 2 are taken")
    assert (ending.kind, ending.count) == (LogKind.ENDING, EXIT_REFUSED)
    assert ending.reason == "2 of 2 are taken"
