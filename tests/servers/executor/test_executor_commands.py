"""The order of a proxy's commands, on a client that only records them."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor import executor_commands
from shared_pathways_service.servers.executor.exchange import Offers
from shared_pathways_service.servers.executor.executor_commands import Commands
from shared_pathways_service.servers.executor.python_calls import PythonCalls

CLIENT, PROGRAM, RUNNER, ARRAY, RESULT = range(1, 6)


class Client:
    """Programs of these texts: `one host`, `two hosts`, `no program`."""

    def __init__(self, command: pb.OpenClient) -> None:
        self.spans_hosts = bool(command.coordinator)
        self.is_broken = False

    def put(self, _spec: pb.ExecutorArraySpec, shards: Sequence[bytes | memoryview]) -> bytes:
        if b"huge" in shards:
            raise MemoryError("no room")
        return b"".join(shards)

    def fetch(self, array: bytes) -> list[memoryview]:
        return [memoryview(array)]

    def compile(self, body: pb.CompileProgram) -> SimpleNamespace:
        if body.text == b"no program":
            raise StatusError(Code.INVALID_ARGUMENT, "it is no program")
        return SimpleNamespace(spans_hosts=body.text == b"two hosts")

    def facts(self, _program: SimpleNamespace) -> pb.ProgramFacts:
        return pb.ProgramFacts()

    def runner(self, program: SimpleNamespace, _results: Any, *, is_quick: bool) -> SimpleNamespace:
        return SimpleNamespace(program=program, is_quick=is_quick)

    #: Programs run while it is set.
    ready = threading.Event()
    ready.set()

    #: The threads of the programs so far.
    ran_on: ClassVar[list[int]] = []

    def run(self, _runner: SimpleNamespace, arguments: Sequence[bytes]) -> list[bytes]:
        self.ran_on.append(threading.get_ident())
        assert self.ready.wait(DEADLINE_S)
        if arguments == [b"bad"]:
            raise StatusError(Code.UNKNOWN, "Gloo failed")
        return [2 * argument for argument in arguments]

    def break_down(self) -> None:
        self.is_broken = True


class Proxy:
    """Sends commands without waiting, and then receives the report of each."""

    def __init__(self) -> None:
        self.offers = Offers()
        self.python = PythonCalls(is_allowed=False)
        self._reports: queue.SimpleQueue[pb.ExecutorReport] = queue.SimpleQueue()
        # (Of an engine's methods.)
        engine: Any = SimpleNamespace(open=Client, bound_collectives=lambda _seconds: None)
        self._commands = Commands(
            engine,
            self._take,
            self.offers,
            "the executor of host 3",
            self.python,
        )
        self._sent = 0
        self._received: dict[int, pb.ExecutorReport] = {}
        self.data: dict[int, bytes] = {}
        #: The commands whose reports may wait for the next one.
        self.patient: list[int] = []

    def send(self, data: Sequence[memoryview] = (), **body: Any) -> int:
        self._sent += 1
        self._commands.take(pb.ExecutorCommand(number=self._sent, client=CLIENT, **body), data)
        return self._sent

    def free(self, **numbers: Sequence[int]) -> None:
        self._commands.take(pb.ExecutorCommand(free=pb.Free(**numbers)))

    def close(self) -> None:
        self._commands.close()

    @contextlib.contextmanager
    def without_threads(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Has the system refuse threads."""

        def refuse(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            yield

    def report(self, number: int) -> pb.ExecutorReport:
        while number not in self._received:
            report = self._reports.get(timeout=DEADLINE_S)
            self._received[report.number] = report
        return self._received[number]

    def _take(
        self,
        report: pb.ExecutorReport,
        data: Iterator[memoryview] | None = None,
        *,
        may_wait: bool = False,
    ) -> None:
        if may_wait:
            self.patient.append(report.number)
        if data is not None:
            self.data[report.number] = b"".join(data)
        self._reports.put(report)

    def prepare(self, text: bytes, coordinator: str = "", *, is_quick: bool = False) -> None:
        """Opens a client, and compiles a program."""
        self.send(open=pb.OpenClient(coordinator=coordinator, collective_timeout_s=7))
        self.send(compile=pb.CompileProgram(program=PROGRAM, text=text))
        made = pb.MakeRunner(program=PROGRAM, runner=RUNNER, is_quick=is_quick)
        self.report(self.send(make_runner=made))

    def run(self, argument: int = ARRAY, result: int = RESULT) -> int:
        return self.send(run=pb.RunProgram(runner=RUNNER, arguments=[argument], results=[result]))


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


def put(data: bytes, array: int = ARRAY) -> pb.PutArray:
    return pb.PutArray(array=array, shards=[data])


def test_the_bytes_of_large_arrays_come_before_commands_and_reports(proxy: Proxy) -> None:
    proxy.prepare(b"one host")
    half = bytes(range(256)) * 128
    large = pb.PutArray(array=ARRAY, sizes=[2 * len(half)])
    proxy.send([memoryview(half), memoryview(half)], put=large)
    fetched = proxy.send(fetch=pb.FetchArray(array=ARRAY))
    assert list(proxy.report(fetched).pieces) == [2 * half]
    proxy.run()
    fetched = proxy.send(fetch=pb.FetchArray(array=RESULT))
    assert (proxy.report(fetched).code, list(proxy.report(fetched).pieces)) == (0, [])
    assert proxy.data == {fetched: 4 * half}


def test_the_report_of_a_program_may_wait_if_another_one_follows(proxy: Proxy) -> None:
    proxy.prepare(b"one host")
    Client.ready.clear()
    try:
        proxy.send(put=put(b"ab"))
        first = proxy.run()
        # (These are queued before the first one ends.)
        second, failed, last = proxy.run(), proxy.run(argument=99), proxy.run()
    finally:
        Client.ready.set()
    assert proxy.report(failed).code == Code.INTERNAL.value
    assert proxy.report(last).code == 0
    assert proxy.patient == [first, second]


def test_a_report_has_the_time_of_the_run_itself(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(step=5)
    # Only runs look at this clock: at their start and at their end.
    monkeypatch.setattr(executor_commands, "time", SimpleNamespace(perf_counter_ns=now.__next__))
    proxy.prepare(b"one host")
    Client.ready.clear()
    try:
        stored = proxy.send(put=put(b"ab"))
        # The second one waits for the first one, which does not count.
        runs = [proxy.run(), proxy.run(), proxy.run(argument=99)]
    finally:
        Client.ready.set()
    assert [proxy.report(number).run_ns for number in (stored, *runs)] == [0, 5, 5, 0]


def test_a_quick_program_runs_at_once_if_nothing_must_run_before(proxy: Proxy) -> None:
    quick, here = 77, threading.get_ident()
    proxy.prepare(b"one host")
    made = proxy.send(make_runner=pb.MakeRunner(program=PROGRAM, runner=quick, is_quick=True))
    stored = proxy.send(put=put(b"ab"))
    assert [proxy.report(number).code for number in (made, stored)] == [0, 0]

    def run_quickly(argument: int, result: int) -> int:
        return proxy.send(run=pb.RunProgram(runner=quick, arguments=[argument], results=[result]))

    Client.ran_on.clear()
    assert proxy.report(run_quickly(ARRAY, RESULT)).code == 0
    assert Client.ran_on == [here]
    Client.ready.clear()
    try:
        # Behind one that runs, then behind one that waits for its argument.
        proxy.run(result=81)
        second = run_quickly(81, 82)
    finally:
        Client.ready.set()
    assert proxy.report(second).code == 0
    assert here not in Client.ran_on[1:]
    fetched = proxy.report(proxy.send(fetch=pb.FetchArray(array=82)))
    assert list(fetched.pieces) == [b"abababab"]


def test_a_quick_program_over_several_hosts_runs_on_its_thread(proxy: Proxy) -> None:
    proxy.prepare(b"two hosts", is_quick=True)
    stored = proxy.send(put=put(b"ab"))
    assert proxy.report(stored).code == 0
    Client.ran_on.clear()
    assert proxy.report(proxy.run()).code == 0
    assert threading.get_ident() not in Client.ran_on


def test_freed_numbers_remain_for_earlier_commands(proxy: Proxy) -> None:
    proxy.prepare(b"one host")
    proxy.send(put=put(b"a"))
    proxy.run()
    proxy.free(programs=[PROGRAM], runners=[RUNNER], arrays=[ARRAY])
    fetched = proxy.report(proxy.send(fetch=pb.FetchArray(array=RESULT)))
    assert (fetched.code, list(fetched.pieces)) == (0, [b"aa"])
    for number, text in (
        (proxy.run(), f"runner {RUNNER} does not exist"),
        (proxy.send(fetch=pb.FetchArray(array=ARRAY)), f"array {ARRAY} does not exist"),
        (proxy.send(describe=pb.DescribeProgram(program=PROGRAM)), f"program {PROGRAM} does not"),
    ):
        report = proxy.report(number)
        assert report.code == Code.INTERNAL
        assert text in report.message


def test_a_freed_client_remains_for_earlier_commands(proxy: Proxy) -> None:
    proxy.prepare(b"one host")
    proxy.send(put=put(b"a"))
    ran = proxy.run()
    proxy.free(clients=[CLIENT])
    assert proxy.report(ran).code == 0
    report = proxy.report(proxy.send(put=put(b"a", 9)))
    assert f"client {CLIENT} does not exist" in report.message


def test_a_command_fails_like_the_command_that_it_depends_on(proxy: Proxy) -> None:
    proxy.prepare(b"no program")
    proxy.send(put=put(b"a"))
    report = proxy.report(proxy.run())
    assert (report.code, report.message) == (Code.INVALID_ARGUMENT, "it is no program")
    assert not report.is_broken


def test_hosts_report_that_they_can_open_a_client_before_they_have_one(proxy: Proxy) -> None:
    assert proxy.report(proxy.send(meet=pb.MeetHosts())).code == 0


@pytest.mark.parametrize(
    "fail",
    [
        lambda proxy: proxy.send(put=put(b"bad")),
        lambda proxy: None,
        lambda proxy: proxy.free(runners=[RUNNER]),
    ],
)
@pytest.mark.parametrize(("text", "breaks"), [(b"two hosts", True), (b"one host", False)])
def test_a_program_that_fails_on_a_host_breaks_the_client_if_others_run_it(
    proxy: Proxy, fail: Callable[[Proxy], object], text: bytes, breaks: bool
) -> None:
    proxy.prepare(text, "10.0.0.1:99" if breaks else "")
    fail(proxy)
    report = proxy.report(proxy.run())
    assert report.code in {Code.UNKNOWN, Code.INTERNAL}
    assert report.is_broken is breaks


def test_commands_for_which_there_is_no_thread_are_answered(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.prepare(b"one host")
    assert proxy.report(proxy.send(put=put(b"a"))).code == 0
    with proxy.without_threads(monkeypatch):
        gathered = proxy.send(gather=pb.GatherArray(array=9))
        used = proxy.run(9)
        other = proxy.send(gather=pb.GatherArray(array=10))
    for number in (gathered, used, other):
        report = proxy.report(number)
        assert report.code == Code.RESOURCE_EXHAUSTED
        assert "no thread for the command gather" in report.message
        assert not report.is_broken
    assert proxy.report(proxy.run()).code == 0


def test_a_client_without_a_thread_for_its_programs_is_not_opened(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proxy.report(proxy.send(fetch=pb.FetchArray(array=ARRAY))).code == Code.INTERNAL
    with proxy.without_threads(monkeypatch):
        met = proxy.send(meet=pb.MeetHosts())
        opened = proxy.send(open=pb.OpenClient(coordinator="10.0.0.1:99", collective_timeout_s=7))
        compiled = proxy.send(compile=pb.CompileProgram(program=PROGRAM, text=b"two hosts"))
        proxy.send(make_runner=pb.MakeRunner(program=PROGRAM, runner=RUNNER))
        ran = proxy.run()
    # (Hosts that do not meet open no client.)
    for number in (met, opened):
        assert proxy.report(number).code == Code.RESOURCE_EXHAUSTED
    for number in (compiled, ran):
        assert proxy.report(number).code in {Code.RESOURCE_EXHAUSTED, Code.INTERNAL}


def test_a_call_of_python_without_a_thread_is_forgotten(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.report(proxy.send(open=pb.OpenClient(collective_timeout_s=7)))
    with proxy.without_threads(monkeypatch):
        proxy.send(make_python=pb.MakePython(program=PROGRAM))
        called = proxy.send(call_python=pb.CallPython(program=PROGRAM))
    assert proxy.report(called).code == Code.RESOURCE_EXHAUSTED
    assert not proxy.python._calls


def test_an_executor_without_memory_names_its_host(proxy: Proxy) -> None:
    proxy.prepare(b"one host")
    report = proxy.report(proxy.send(put=put(b"huge")))
    assert report.code == Code.RESOURCE_EXHAUSTED
    assert report.message == "the executor of host 3 is out of memory: no room"
