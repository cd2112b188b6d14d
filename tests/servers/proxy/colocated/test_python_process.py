"""The process in which a session's functions run: what it sends, and how it ends."""

from __future__ import annotations

import os
import signal
import struct
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.processes import DEADLINE_S, is_alive, is_gone
from harness.proxy.python_functions import Function, pickled
from shared_pathways_service.api.faulty_jax import SOUND_XLA_FLAGS
from shared_pathways_service.servers.colocated import child_process
from shared_pathways_service.servers.colocated.python_process import PythonProcess
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from tests.servers.proxy.colocated.conftest import MakeWaiting
from tests.servers.proxy.conftest import wait_until
from tests.servers.proxy.processes import FOUR


@pytest.fixture
def python() -> Iterator[PythonProcess]:
    process = PythonProcess(1)
    yield process
    process.close()


def put(python: PythonProcess, function: Function, number: int = 1) -> futures.Future[Any]:
    return python.put(
        number,
        f"function {number}",
        pickled(function),
        device_ids=[0],
        buffers=[FOUR.tobytes()],
        sizes=[FOUR.nbytes],
    )


def result(call: futures.Future[Any]) -> np.ndarray:
    (piece,) = call.result(DEADLINE_S)
    return np.frombuffer(piece, np.float32)


def error(call: futures.Future[Any]) -> StatusError:
    with pytest.raises(StatusError) as raised:
        call.result(DEADLINE_S)
    return raised.value


@pytest.mark.parametrize(("release", "flags"), [("0.10.2", SOUND_XLA_FLAGS), ("0.12.0.1", None)])
def test_functions_compute_without_the_faulty_part_of_a_release(
    release: str, flags: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxlib.version.__version__", release)
    theirs = child_process._environment({"XLA_FLAGS": "--of_the_proxy=1", "PATH": "/bin"})
    assert (theirs.get("XLA_FLAGS"), theirs["PATH"]) == (flags, "/bin")


@pytest.mark.parametrize(
    ("arguments", "results"), [(400_000, 1), (1, 100_000)], ids=["arguments", "results"]
)
def test_arrays_over_the_limit_are_refused(
    python: PythonProcess, arguments: int, results: int
) -> None:
    with pytest.raises(StatusError, match=r"f: .* needs \d+ bytes .* limit is 1048576") as raised:
        python.put(
            1, "f", b"", device_ids=[0], buffers=[b"."] * arguments, sizes=[1 << 40] * results
        )
    assert raised.value.code == Code.RESOURCE_EXHAUSTED
    assert python.outstanding == 0


_LENGTH = struct.Struct("!Q")


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (_LENGTH.pack(2) + b"[]", "'list' object"),
        (_LENGTH.pack(200_000) + b"[" * 200_000, "recursion"),
        (_LENGTH.pack(1 << 40), f"a message whose object has {1 << 40} bytes"),
        (_LENGTH.pack(13) + b'{"sizes":[3]}', "it sent results of another size"),
    ],
    ids=["no object", "depth", "length", "sizes"],
)
def test_a_process_that_breaks_the_protocol_is_replaced(
    python: PythonProcess, sent: bytes, told: str
) -> None:
    def break_it(x: Any) -> Any:
        os.write(int(sys.argv[1]), sent)
        return x

    failed = error(put(python, break_it))
    assert failed.code == Code.ABORTED
    assert "function 1: the process of its colocated Python (pid " in failed.message
    assert told in failed.message
    np.testing.assert_array_equal(result(put(python, lambda x: x + 1, 2)), FOUR + 1)


def test_errors_may_have_any_text(python: PythonProcess) -> None:
    def fail(_x: Any) -> Any:
        raise ValueError("\udcff")

    assert error(put(python, fail)).message == "function 1: ValueError: \\udcff"


@pytest.mark.race
def test_a_process_that_ends_during_a_call_ends_the_call_and_what_it_forked(
    python: PythonProcess, tmp_path: Path
) -> None:
    told = tmp_path / "forked"

    def end(_x: Any) -> Any:
        # (Held by the forked process: the socket does not end with this one.)
        os.dup(int(sys.argv[1]))
        forked = os.fork()
        if not forked:
            signal.pause()
        told.write_text(str(forked))
        os._exit(3)

    failed = error(put(python, end))
    assert failed.code == Code.ABORTED
    assert failed.message.endswith("has ended with code 3: its socket was closed")
    forked = int(told.read_text())
    wait_until(lambda: is_gone(forked))
    np.testing.assert_array_equal(result(put(python, lambda x: x + 1, 2)), FOUR + 1)


@pytest.mark.race
def test_abandoned_calls_end_alone(python: PythonProcess, make_waiting: MakeWaiting) -> None:
    waiting = make_waiting()
    first = put(python, waiting.function)
    second, third = put(python, lambda x: x + 1, 2), put(python, lambda x: x + 2, 3)
    (process,) = waiting.processes()
    assert python.outstanding == 3
    python.abandon(second)
    assert second.cancelled()
    assert is_alive(process)
    python.abandon(first)
    assert "has ended by signal 9" in error(first).message
    np.testing.assert_array_equal(result(third), FOUR + 2)
    wait_until(lambda: not is_alive(process))
    # One that has ended already does not take the next one with it.
    other = make_waiting("other")
    fourth = put(python, other.function, 4)
    other.processes()
    python.abandon(third)
    other.go()
    np.testing.assert_array_equal(result(fourth), FOUR)
    # (Counted just after those that wait for it go on.)
    wait_until(lambda: python.outstanding == 0)


def test_calls_after_the_end_are_not_made(make_waiting: MakeWaiting) -> None:
    python = PythonProcess(1)
    waiting = make_waiting()
    running = put(python, waiting.function)
    queued = put(python, lambda x: x, 2)
    (process,) = waiting.processes()
    python.close()
    assert "has ended by signal 9" in error(running).message
    assert error(queued).code == Code.CANCELLED
    assert put(python, lambda x: x, 3).cancelled()
    wait_until(lambda: not is_alive(process))
