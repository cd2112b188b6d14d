"""Sessions share one compiler: each in turn, none beyond its end."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.programs import DOUBLE, compile_options
from harness.proxy.raw import Failed, Pending, RawClient, single
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.proxy.engine.compilations import Compilations
from shared_pathways_service.servers.proxy.execution.openings import Opening
from shared_pathways_service.servers.serving.last_requests_file import LastRequests, read_unfinished
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy, wait_until

FOUR = np.arange(4, dtype=np.float32)


@pytest.fixture
def last_requests(tmp_path: Path) -> Path:
    return tmp_path / "last"


@pytest.fixture
def compilations(last_requests: Path) -> Iterator[Compilations]:
    made = Compilations(LastRequests(str(last_requests)).place(""))
    yield made
    made.close()


def unexpected(error: StatusError) -> None:
    raise AssertionError(error)


def begin_compile(client: RawClient, name: str) -> Pending:
    return client.begin(
        "compile",
        program=core_pb2.Serialized(
            type_name="xla::ifrt::XlaProgram", data=DOUBLE.replace("@double", f"@{name}").encode()
        ),
        compile_options=core_pb2.Serialized(
            type_name="xla::ifrt::XlaCompileOptions", data=compile_options([0])
        ),
    )


def test_sessions_are_served_in_turn(compilations: Compilations) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    seen: list[str] = []

    def first() -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)

    compilations.put(1, first, unexpected)
    assert begun.wait(DEADLINE_S)
    for session, name in ((1, "1a"), (1, "1b"), (1, "1c"), (2, "2a"), (2, "2b"), (3, "3a")):
        compilations.put(session, functools.partial(seen.append, name), unexpected)
    compilations.put(1, done.set, unexpected)
    go_on.set()
    assert done.wait(DEADLINE_S)
    assert seen == ["1a", "2a", "3a", "1b", "2b", "1c"]


class SeenOpening(Opening):
    """Reports when something waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        added = super().add_callback(callback)
        self.is_waited_for.set()
        return added


@pytest.mark.parametrize("waits_on", [False, True])
@pytest.mark.parametrize("dropped_at", [2, 3])
def test_a_dropped_session_does_not_come_back_between_two_steps(
    compilations: Compilations, dropped_at: int, waits_on: bool
) -> None:
    first, last = SeenOpening(), SeenOpening()
    calls = itertools.count(1)
    compiled: list[str] = []
    dropped, done = threading.Event(), threading.Event()

    def openings() -> Sequence[Opening]:
        """Asked for when the program is put, when that has settled, and before it is compiled."""
        call = next(calls)
        if call == 1:
            return [first]
        if call < dropped_at:
            return []
        if call == dropped_at:
            compilations.drop(1)
            dropped.set()
            return [last] if waits_on else []
        return []

    compilations.put(1, lambda: compiled.append("of the dead"), unexpected, openings)
    assert first.is_waited_for.is_set()
    first.settle()
    assert dropped.wait(DEADLINE_S)
    if waits_on:
        assert last.is_waited_for.wait(DEADLINE_S)
        last.settle()
    compilations.put(2, done.set, unexpected)
    assert done.wait(DEADLINE_S)
    assert not compiled


def test_any_error_is_reported_and_the_thread_continues(
    compilations: Compilations, last_requests: Path
) -> None:
    told: list[StatusError] = []
    done = threading.Event()

    def leave() -> None:
        raise SystemExit("no more")

    compilations.put(1, leave, told.append)
    compilations.put(1, done.set, unexpected)
    assert done.wait(DEADLINE_S)
    assert [error.message for error in told] == ["SystemExit: no more"]
    wait_until(lambda: read_unfinished(last_requests).running == ())


def test_what_an_ended_session_waits_for_is_not_compiled(
    make_proxy: MakeProxy, connect: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    proxy = make_proxy(on_session_end=lambda _running: ended.set())
    compiler = proxy.engine.compiler
    compile_really = compiler.compile
    begun, go_on = threading.Event(), threading.Event()
    compiled: list[bytes] = []

    def compile_late(program: bytes, options: bytes, *rest: object) -> object:
        compiled.append(program)
        begun.set()
        assert go_on.wait(DEADLINE_S)
        return compile_really(program, options, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "compile", compile_late)
    other = connect(proxy.address)
    with RawClient(proxy.address) as gone:
        for number in range(5):
            begin_compile(gone, f"of_the_dead_{number}")
        assert begun.wait(DEADLINE_S)
        (session,) = [s for s in proxy.service.sessions if s.session_id == gone.session_id]
        wait_until(lambda: len(session.compiling) == 10)
    assert ended.wait(DEADLINE_S)
    wanted = begin_compile(other, "wanted")
    go_on.set()
    program = wanted.result().loaded_executable_handle
    assert [b"of_the_dead" in program for program in compiled] == [True, False]
    (result,) = other.execute(program, [other.put(FOUR, single(0))])
    np.testing.assert_array_equal(other.fetch(result), 2 * FOUR)


def test_a_program_that_cannot_be_described_is_answered(
    proxy: LocalProxy, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        strange = SimpleNamespace(name="strange", device_ids=[0], executable=None)
        patch.setattr(proxy.engine.compiler, "compile", lambda *_arguments: strange)
        with pytest.raises(Failed, match="'NoneType' object has no attribute 'fingerprint'"):
            begin_compile(client, "strange").result()
    (session,) = proxy.service.sessions
    assert not session.programs
    assert not session.compiling
    assert client.compile(DOUBLE, [0])
