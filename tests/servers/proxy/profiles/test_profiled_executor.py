"""What an executor is asked for its profile, and what becomes of its answers."""

from __future__ import annotations

from concurrent import futures

import pytest

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.profiles.planes import Device
from shared_pathways_service.servers.proxy.profiles.profiled_executor import ExecutorProcess
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels

_Action = pb.ProfileExecutor.Action


class Link:
    """Answers at once."""

    def __init__(self, *, is_lost: bool = False) -> None:
        self.asked: list[pb.ProfileExecutor] = []
        self._is_lost = is_lost

    def ask(
        self, command: pb.ExecutorCommand, *, receives: list[memoryview] | None = None
    ) -> futures.Future[pb.ExecutorReport]:
        self.asked.append(command.profile)
        answer: futures.Future[pb.ExecutorReport] = futures.Future()
        if self._is_lost:
            answer.set_exception(StatusError(Code.DATA_LOSS, "it has ended"))
            return answer
        if receives is not None:
            receives += [memoryview(b"ab"), memoryview(b"c")]
        answer.set_result(pb.ExecutorReport(clock_ns=7))
        return answer


def executor(link: Link) -> ExecutorProcess:
    return ExecutorProcess(link, [Device(4, 1, 0), Device(5, 1, 0)])


def test_all_commands_of_a_profile_name_it() -> None:
    link = Link()
    first, second = executor(link), executor(link)
    for process in (first, second):
        process.start(Levels(host_tracer=1)).result(0)
        assert process.stop(10).result(0) == b"abc"
        process.drop()
    assert [one.action for one in link.asked[:3]] == [_Action.START, _Action.STOP, _Action.DROP]
    assert (link.asked[0].host_tracer_level, link.asked[1].most_bytes) == (1, 10)
    numbers = [one.profile for one in link.asked]
    assert numbers[:3] == numbers[:1] * 3
    assert numbers[3:] == numbers[3:4] * 3
    assert numbers[0] != numbers[3]
    assert first.file == "sps-slice1-host0"


def test_each_answer_is_a_sample_of_the_clock() -> None:
    process = executor(Link())
    process.read_clock().result(0)
    [sample] = process.samples
    assert sample.sent_ns <= sample.received_ns
    assert sample.remote_ns == 7


def test_an_executor_that_is_lost() -> None:
    process = executor(Link(is_lost=True))
    for future in (process.start(Levels()), process.read_clock(), process.stop(1)):
        with pytest.raises(StatusError, match="it has ended"):
            future.result(0)
    process.drop()
    assert process.samples == []
