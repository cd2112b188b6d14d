"""Functions that wait for ever: the loss of their slice, the end of their session, many of them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from harness.processes import ServerProcess, is_alive
from harness.proxy.programs import DOUBLE
from harness.proxy.python_functions import compile_python
from harness.proxy.raw import Failed, RawClient, single
from tests.servers.conftest import MakeService
from tests.servers.proxy.colocated.conftest import MakeWaiting
from tests.servers.proxy.conftest import MakeClient, MakeProxy, StartProxy, wait_until
from tests.servers.proxy.processes import DATA_LOSS, FOUR, address_of, start_with

KILLED = r"the process of its colocated Python \(pid \d+\) has ended by signal 9"
FORKS = pytest.mark.parametrize("forks", [False, True], ids=["alone", "forks"])


def computes(client: RawClient, device: int) -> None:
    """Runs a program on a device."""
    (doubled,) = client.execute(
        client.compile(DOUBLE, [device]), [client.put(FOUR, single(device))]
    )
    np.testing.assert_array_equal(client.fetch(doubled), 2 * FOUR)


def lives_on(proxy: ServerProcess) -> None:
    """Asserts that a proxy has not ended, and ends when asked to."""
    assert proxy.stop() == 0


@pytest.mark.race
@FORKS
def test_the_loss_of_its_slice_ends_a_function(
    make_service: MakeService,
    start_proxy: StartProxy,
    connect: MakeClient,
    make_waiting: MakeWaiting,
    tmp_path: Path,
    forks: bool,
) -> None:
    service = make_service()
    workers = service.start_ready_workers("slice-0", "slice-1")
    proxy = start_with(start_proxy, service.address, tmp_path / "report", "--colocated_python")
    proxy.wait_for_line("2 of 2 slices placed")
    held = {s.virtual_index: s.id for s in service.status().slices}
    client, other = connect(address_of(proxy)), connect(address_of(proxy))
    waiting = make_waiting(forks=forks)
    program = compile_python(client, waiting.function)
    (result,) = client.execute(program, [client.put(FOUR, single(0))])
    processes = waiting.processes()
    assert len(processes) == 1 + forks
    computes(other, 0)
    ready = client.begin_ready(result)
    workers[int(held[0][-1])].kill()
    with pytest.raises(Failed, match="virtual slice 0") as raised:
        ready.result()
    assert raised.value.code == DATA_LOSS
    proxy.wait_for_line(KILLED)
    wait_until(lambda: not any(map(is_alive, processes)))
    computes(other, 4)
    # The session's next function runs in another process.
    program = compile_python(client, lambda x: x + 1, 4)
    (result,) = client.execute(program, [client.put(FOUR, single(4))])
    np.testing.assert_array_equal(client.fetch(result), FOUR + 1)
    lives_on(proxy)


@pytest.mark.race
@FORKS
def test_the_end_of_its_session_ends_a_function(
    start_proxy: StartProxy, connect: MakeClient, make_waiting: MakeWaiting, forks: bool
) -> None:
    proxy = start_proxy("--colocated_python")
    waiting = make_waiting(forks=forks)
    with RawClient(address_of(proxy)) as first:
        program = compile_python(first, waiting.function)
        first.execute(program, [first.put(FOUR, single(0))])
        processes = waiting.processes()
        assert len(processes) == 1 + forks
    proxy.wait_for_line(KILLED)
    wait_until(lambda: not any(map(is_alive, processes)))
    computes(connect(address_of(proxy)), 0)
    lives_on(proxy)


def test_the_limit_of_calls_that_let_later_programs_run(
    make_proxy: MakeProxy, connect: MakeClient, make_waiting: MakeWaiting
) -> None:
    proxy = make_proxy(runs_python=True)
    client = connect(proxy.address)
    waiting = make_waiting()
    arguments = [client.put(FOUR, single(0))]
    results = client.execute(compile_python(client, waiting.function), arguments)
    waiting.processes()
    program = compile_python(client, lambda x: x + 1)
    for _ in range(100):
        results += client.execute(program, arguments)
    (session,) = proxy.service.sessions
    python = session.python.here
    # One more than the limit: the slice waits for it.
    wait_until(lambda: python.outstanding == 65)
    computes(client, 4)
    assert python.outstanding == 65
    threads = [t.name for t in threading.enumerate() if t.name.startswith("slice-0-")]
    assert len(threads) == 65
    waiting.go()
    for result in results[1:]:
        np.testing.assert_array_equal(client.fetch(result), FOUR + 1)
    computes(client, 0)
