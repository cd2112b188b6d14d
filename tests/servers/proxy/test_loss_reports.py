"""A proxy reports placements that it cannot use, to each resource manager that takes reports."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc

from harness.carriers import hello
from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.servers.proxy.execution.virtual_slices import SliceTable
from shared_pathways_service.servers.proxy.exits import Ending
from shared_pathways_service.servers.proxy.loss_reports import LossReports
from shared_pathways_service.servers.proxy.rm_link import ResourceManagerLink
from tests.servers.proxy.managers import idle_executor, serving


def test_a_lost_placement_is_reported_until_the_manager_has_answered(
    own_directories: Path,
) -> None:
    class Upgraded(pb_grpc.ResourceManagerServicer):
        """Takes no losses on its first stream, as older versions; then breaks off, then answers."""

        def TenantSession(  # noqa: N802 - gRPC's name
            self, requests: Iterator[pb.TenantMessage], context: grpc.ServicerContext
        ) -> Iterator[pb.TenantUpdate]:
            hellos.put(next(requests).hello)
            stream = hellos.qsize()
            yield pb.TenantUpdate(welcome=pb.TenantWelcome(version=2, takes_losses=stream > 1))
            if stream == 1:
                reported.wait(DEADLINE_S)
                context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
            for message in requests:
                lost.put(message.lost)
                if stream == 2:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
                answer = pb.Placement(virtual_index=0, state=pb.Placement.UNPLACED, generation=7)
                yield pb.TenantUpdate(placement=answer)

    hellos: queue.Queue[pb.TenantHello] = queue.Queue()
    lost: queue.Queue[pb.PlacementLost] = queue.Queue()
    reported = threading.Event()
    slices, reports = SliceTable(("tpuv6e:2x2",) * 2, idle_executor), LossReports()
    with serving(Upgraded(), f"unix:{own_directories / 'rm'}") as address:  # type: ignore[abstract]
        link = ResourceManagerLink(
            address, hello(name="ada", incarnation="1"), slices, Ending(""), None, losses=reports
        )
        link.start()
        try:
            reports.add(0, 7, "no\nanswer", 1)
            reported.set()
            received = [lost.get(timeout=DEADLINE_S) for _ in range(2)]
            # (Sent behind the first answer, which the link handles before.)
            reports.add(1, 9, "x" * 1000, None)
            last = lost.get(timeout=DEADLINE_S)
        finally:
            reported.set()
            link.close("done")
            slices.close()
    expected = pb.PlacementLost(virtual_index=0, generation=7, host_index=1, reason="no answer")
    assert received == [expected, expected]
    assert (last.virtual_index, last.generation, last.reason) == (1, 9, "x" * 256)
    assert not last.HasField("host_index")


def test_a_report_is_answered_by_the_end_of_its_placement_or_by_a_newer_one() -> None:
    def left_after(answer: pb.Placement) -> bool:
        sent: list[pb.PlacementLost] = []
        reports = LossReports()
        reports.add(0, 7, "no answer", None)
        reports.answered(answer)
        reports.begin(sent.append)
        return bool(sent)

    assert left_after(pb.Placement(state=pb.Placement.PLACED, generation=7)), "told of it again"
    assert left_after(pb.Placement(state=pb.Placement.UNPLACED, generation=6))
    assert not left_after(pb.Placement(state=pb.Placement.UNPLACED, generation=7))
    assert not left_after(pb.Placement(state=pb.Placement.PLACED, generation=8))
