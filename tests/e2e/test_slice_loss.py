"""A slice dies under a running program, by each way a worker can die, and the program goes on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from harness.deadlines import wait_until
from harness.programs import pids, program, service, status

pytestmark = pytest.mark.race

#: A client on two slices with an array on each, that hears of losses and tells what it fetches.
CLIENT = """
import queue
from harness.deadlines import deadline
heard = queue.SimpleQueue()
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": SLICES}, on_event=heard.put,
                          elastic_slices=ELASTIC) as connection:
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    def await_event(kind, index):
        while True:
            event = heard.get(timeout=deadline(80))
            if event.kind == kind and event.data.get("virtual_index") == index:
                return event

    def fetch(x):
        try:
            return np.asarray(x).tolist()
        except jax.errors.JaxRuntimeError as error:
            return str(error)

    def on(index, x):
        devices = [d for d in jax.devices() if d.slice_index == index]
        mesh = Mesh(np.array(devices), ("chip",))
        return jax.device_put(x, NamedSharding(mesh, P("chip")))

    work = jax.jit(lambda x: (x * 2 + 1))
    original = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)

    def right(x):
        return fetch(x) == (original * 2 + 1).tolist()

    # The proxy hears of a slice on a stream of its own, a moment before or after the client does.
    # Until then it computes what is right; it never gives anything else. (Not by fetching x again
    # and again: JAX keeps what it fetched once.)
    def until_lost(x):
        while "DATA_LOSS" not in (told := str(fetch(work(x)))):
            assert told == str((original * 2 + 1).tolist()), told
        return fetch(x)

    def until_right(index):
        while not (done := right(x := work(on(index, original)))):
            assert "DATA_LOSS" in str(fetch(x))
        return done
"""


def client(body: str, slices: int = 2, elastic: int = 0) -> str:
    source = CLIENT.replace("SLICES", str(slices)).replace("ELASTIC", str(elastic))
    indented = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    return source + "\n" + indented + '\nsay("left")\n'


@contextlib.contextmanager
def stopped(worker: int) -> Iterator[None]:
    """Has a worker hang for the length of the block."""
    process = psutil.Process(worker)
    process.suspend()
    try:
        yield
    finally:
        process.resume()


#: Many beats to a deadline: on a machine that has no time for them a healthy worker misses some.
SOON_HUNG = ("--beat-interval", "0.5", "--hung-after", "10")

LOSS = client("""
kept = [on(0, original), on(1, original)]
assert fetch(work(kept[0])) == fetch(work(kept[1]))
pending = work(kept[0])             # dispatched before the loss, fetched after the re-placement
say("computed")
await_event("slice.unplaced", 0)
after_loss = until_lost(kept[0])
placed = await_event("slice.placed", 0)
again = until_right(0)              # the same jitted function, on the spare
say("fetched", after_loss=after_loss, after_replacement=fetch(kept[0]), pending=fetch(pending),
    other=bool((np.asarray(kept[1]) == original).all()), again=again and right(work(kept[1])),
    slice_id=placed.data["slice_id"])
""")


def _held_by(virtual_index: int) -> str:
    [found] = [s["id"] for s in status()["slices"] if s.get("virtual_index") == virtual_index]
    return str(found)


def _assert_lost_and_replaced(told: dict[str, object], lost_slice: str) -> None:
    for fetched in ("after_loss", "after_replacement", "pending"):
        assert "DATA_LOSS" in str(told[fetched]), fetched
    assert told["other"], "the other slice's array changed"
    assert told["again"], "the function's result on the spare differs"
    assert told["slice_id"] != lost_slice


def test_killed_worker_is_data_loss_then_the_spare() -> None:
    with service(), program(LOSS) as running:
        running.expect("computed")
        lost = _held_by(0)
        [worker] = pids("worker", slice=lost)
        os.kill(worker, signal.SIGKILL)
        _assert_lost_and_replaced(running.expect("fetched"), lost)
        running.expect("left")
        assert running.wait() == 0


def test_stopped_worker_is_lost_after_the_heartbeats_deadline() -> None:
    with service(arguments=SOON_HUNG), program(LOSS) as running:
        running.expect("computed")
        lost = _held_by(0)
        [worker] = pids("worker", slice=lost)
        with stopped(worker):
            _assert_lost_and_replaced(running.expect("fetched"), lost)
        running.expect("left")
        assert running.wait() == 0


def test_without_a_spare_work_fails_until_the_worker_is_back() -> None:
    source = client(
        """
        kept = on(0, original)
        say("computed")
        await_event("slice.unplaced", 0)
        say("unplaced", old=until_lost(kept), new=fetch(work(on(0, original))),
            other=right(work(on(1, original))),
            state=connection.slices[0].state)
        await_event("slice.placed", 0)
        say("back", old=fetch(kept), new=until_right(0))
    """.replace("\n        ", "\n")
    )
    with service(spares=0, arguments=SOON_HUNG), program(source) as running:
        running.expect("computed")
        [worker] = pids("worker", slice=_held_by(0))
        with stopped(worker):
            told = running.expect("unplaced")
        assert "DATA_LOSS" in told["old"]
        assert "DATA_LOSS" in told["new"]
        assert told["other"]
        assert told["state"] == "unplaced"
        told = running.expect("back")
        assert "DATA_LOSS" in told["old"]
        assert told["new"]
        running.expect("left")
        assert running.wait() == 0


def test_elastic_slices_start_with_fewer_and_fill_up() -> None:
    body = """
    say("started", states=[s.state for s in connection.slices], total=connection.total_chips)
    await_event("slice.placed", 2)
    say("filled", ok=until_right(2))
    """.replace("\n    ", "\n")
    with service("tpuv6e:2x2=3", spares=0, arguments=SOON_HUNG), contextlib.ExitStack() as stack:
        [worker] = pids("worker", slice=status()["slices"][0]["id"])
        with stopped(worker):
            wait_until("the slice to be lost", lambda: "lost" in _states())
            running = stack.enter_context(program(client(body, slices=3, elastic=1)))
            started = running.expect("started")
            assert sorted(started["states"]) == ["placed", "placed", "unplaced"]
        assert running.expect("filled")["ok"]
        running.expect("left")
        assert running.wait() == 0


def _states() -> list[str]:
    return [s["state"] for s in status()["slices"]]


ENDLESS = client("""
endless = jax.jit(lambda x: jax.lax.while_loop(
    lambda c: c[0] >= 0, lambda c: (c[0] * 0 + 1, c[1] + 1), (jnp.int32(1), x))[1])
mine, other = on(0, original), on(1, original)
assert right(work(other))
stuck = endless(mine)
answers = queue.SimpleQueue()
waiter = threading.Thread(target=lambda: answers.put(fetch(stuck)))
waiter.start()
say("running", other=right(work(other)), answered=not answers.empty())
# (The proxy answers, whenever the agent reports the loss, and ends some seconds later.)
say("answered", text=answers.get(timeout=deadline(80)))
waiter.join()
say("other", ok=right(work(other)))
await_event("slice.unplaced", 0)
while True:
    event = heard.get(timeout=deadline(80))
    if event.kind == "proxy.exited":
        break
say("ended")
""")


def _with_failure_reported(source: str) -> str:
    head, body = source.split("with isc_pathways", 1)
    inside = ("with isc_pathways" + body).replace("\n", "\n    ")
    return (
        head
        + "try:\n    "
        + inside
        + '\nexcept errors.ProxyFailed as e:\n    say("failed", error=e.to_json())\n'
    )


def test_endless_program_on_a_lost_slice_answers_then_ends_the_proxy() -> None:
    with (
        service(arguments=("--lost-program-grace", "8")),
        program(_with_failure_reported(ENDLESS)) as running,
    ):
        told = running.expect("running")
        assert told["other"], "slice 1 was held up by slice 0's endless program"
        assert not told["answered"]
        [worker] = pids("worker", slice=_held_by(0))
        os.kill(worker, signal.SIGKILL)
        assert "DATA_LOSS" in running.expect("answered")["text"]
        assert running.expect("other")["ok"]
        running.expect("ended")
        error = running.expect("failed")["error"]
        assert error["type"] == "ProxyFailed"
        assert "loss of slice 0" in error["message"]
        assert running.wait() == 0
