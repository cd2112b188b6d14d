"""Programs that cannot take long run on the thread that reads the request, all others elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from harness.processes import DEADLINE_S, REPOSITORY
from harness.proxy.programs import DOUBLE, ENDLESS, sharded_double
from harness.proxy.raw import RawClient, single, split
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.execution import operations
from shared_pathways_service.servers.proxy.execution.executor import Executor
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.xla import mlir, program_costs
from tests.servers.proxy.conftest import LocalProxy, MakeClient, StartProxy, wait_until
from tests.servers.proxy.engine import quick_programs

FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)


@pytest.fixture(scope="module")
def texts() -> Mapping[str, str]:
    """The samples as JAX writes them."""
    done = subprocess.run(
        [sys.executable, "-m", quick_programs.__name__],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
        timeout=DEADLINE_S,
    )
    found: Mapping[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("name", "sample"), quick_programs.SAMPLES.items())
def test_what_is_quick(texts: Mapping[str, str], name: str, sample: quick_programs.Sample) -> None:
    assert program_costs.is_quick(mlir.parse(texts[name].encode())) is sample.quick


def test_what_is_no_longer_known_is_not_quick() -> None:
    dynamic = DOUBLE.replace("4xf32", "?xf32")
    assert not program_costs.is_quick(mlir.parse(dynamic.encode()))


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what came into an executor's queue."""
    seen: list[str] = []
    put = Executor.put

    def see(executor: Executor, operation: Operation) -> None:
        seen.append(operation.name)
        put(executor, operation)

    monkeypatch.setattr(Executor, "put", see)
    return seen


def stay_on(proxy: LocalProxy, index: int) -> tuple[Operation, threading.Event]:
    """Has something run on a slice until the event is set; returns when it runs."""
    begun, end = threading.Event(), threading.Event()

    def stay() -> list[Any]:
        begun.set()
        end.wait(DEADLINE_S)
        return []

    epochs = proxy.slices.epochs((index,))
    stuck = Operation("stuck", stay, inputs=(), outputs=(), epochs=epochs, session_id=0)
    stuck.start()
    assert begun.wait(DEADLINE_S)
    return stuck, end


def test_a_quick_program_of_one_device_is_not_handed_on(
    client: RawClient, queued: list[str]
) -> None:
    quick = client.compile(DOUBLE, [0])
    (result,) = client.execute(quick, [client.put(FOUR, single(0))])
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
    assert queued == []
    over_both = client.compile(sharded_double(8), range(8))
    (result,) = client.execute(over_both, [client.put(EIGHT, split(range(8)))])
    np.testing.assert_array_equal(client.fetch(result), 2 * EIGHT)
    assert queued == ["sharded_double"] * 2


def test_a_quick_program_waits_for_running_operations(
    proxy: LocalProxy, client: RawClient, queued: list[str]
) -> None:
    quick, over_both = client.compile(DOUBLE, [0]), client.compile(sharded_double(8), range(8))
    four, eight = client.put(FOUR, single(0)), client.put(EIGHT, split(range(8)))
    executor = proxy.slices.current()[0].executor
    assert executor is not None
    # As if another one ran here.
    assert executor.reserve()
    assert not executor.reserve()
    # Another slice has nothing to do.
    (elsewhere,) = client.execute(client.compile(DOUBLE, [4]), [client.put(FOUR, single(4))])
    np.testing.assert_array_equal(client.fetch(elsewhere), 2 * FOUR)
    results = client.execute(quick, [four]) + client.execute(over_both, [eight])
    pending = client.begin_ready(*results)
    assert not pending.future.done()
    assert queued == ["double", "sharded_double", "sharded_double"]
    executor.release()
    pending.result()
    np.testing.assert_array_equal(client.fetch(results[0]), 2 * FOUR)
    np.testing.assert_array_equal(client.fetch(results[1]), 2 * EIGHT)
    # And from then on as before.
    wait_until(executor.reserve)
    executor.release()
    client.execute(quick, [four])
    assert len(queued) == 3


def test_a_quick_program_that_fails_is_like_any_other(
    proxy: LocalProxy, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = client.compile(DOUBLE, [0])
    four = client.put(FOUR, single(0))
    (session,) = proxy.service.sessions

    def fail(_arguments: list[Any]) -> list[Any]:
        raise RuntimeError("INTERNAL: it failed")

    with monkeypatch.context() as patch:
        patch.setattr(session.programs[quick], "run", fail)
        (result,) = client.execute(quick, [four])
    with pytest.raises(Exception, match="it failed"):
        client.ready(result)
    (result,) = client.execute(quick, [four])
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)


def test_while_something_abandoned_runs_on_all_are_handed_on(
    proxy: LocalProxy, client: RawClient, queued: list[str]
) -> None:
    quick = client.compile(DOUBLE, [0])
    four = client.put(FOUR, single(0))
    _, end = stay_on(proxy, 1)
    proxy.lose(1)
    queued.clear()
    (result,) = client.execute(quick, [four])
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
    assert queued == ["double"]
    end.set()
    wait_until(lambda: not operations._LEFT_BEHIND)
    client.execute(quick, [four])
    assert queued == ["double"]


def test_what_was_left_behind_counts_as_long_as_it_runs(
    proxy: LocalProxy, client: RawClient, queued: list[str]
) -> None:
    quick = client.compile(DOUBLE, [0])
    four = client.put(FOUR, single(0))
    executor = proxy.slices.current()[0].executor
    assert executor is not None
    stuck, end = stay_on(proxy, 0)
    # As at the end of the session that asked for it.
    assert stuck.abandon(StatusError(Code.CANCELLED, "the session has ended"))
    queued.clear()
    (result,) = client.execute(quick, [four])
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
    assert queued == ["double"]
    end.set()
    wait_until(executor.reserve)
    executor.release()
    client.execute(quick, [four])
    assert queued == ["double"]


def test_what_runs_on_a_slice_is_known_before_anything_comes_to_its_next_place(
    proxy: LocalProxy,
) -> None:
    seen: list[bool] = []
    stuck, end = stay_on(proxy, 1)
    # Called amid the loss, before the thread is left behind.
    assert stuck.add_callback(lambda: seen.append(stuck in operations._LEFT_BEHIND))
    proxy.lose(1)
    assert seen == [True]
    end.set()
    wait_until(lambda: not operations._LEFT_BEHIND)


def test_a_session_goes_on_beside_an_endless_program(
    start_proxy: StartProxy, connect: MakeClient
) -> None:
    proxy = start_proxy("--lost_program_grace_s=600")
    assert proxy.ready is not None, "\n".join(proxy.lines)
    client, other = (connect(f"unix:{proxy.ready['socket']}") for _ in range(2))
    endless = client.compile(ENDLESS, [0])
    client.execute(endless, [client.put(FOUR, single(0))])
    client.close()
    # Its program runs on, on the devices of the first slice.
    quick = [other.compile(DOUBLE, [device]) for device in (0, 4)]
    arguments = [other.put(FOUR, single(device)) for device in (0, 4)]
    results = [
        other.execute(*pair)[0] for pair in zip(quick, ([a] for a in arguments), strict=True)
    ]
    np.testing.assert_array_equal(other.fetch(results[1]), 2 * FOUR)
