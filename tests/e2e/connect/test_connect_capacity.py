"""More clients than slices: who has them, who is told so, who waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from harness.embedded import embedded, eventually, nothing_left, shut_down
from harness.programs import program, status

pytestmark = pytest.mark.race

HOLDER = """
import jax, jax.numpy as jnp
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    x = jax.device_put(jnp.arange(8.0), connection.devices[0])
    say("holds", name=connection.proxy_job_name, value=float((x * x).sum()))
    wait_for("leave")
say("left")
"""

THIRD = """
try:
    isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
except errors.SlicesTaken as error:
    say("taken", wanted=error.wanted, free=error.free, holders=list(error.holders),
        position=error.position, message=error.message)
try:
    isc_pathways.connect(expected_tpu_instances={"tpuv5e:2x2": 1}).start()
except errors.InvalidRequestError as error:
    say("no such type", field=error.field, expected=error.expected)
heard = []
def hear(event):
    heard.append(event)
    if event.kind == "tenant.queued":
        say("queued", position=event.data["position"], holders=event.data["holders"])
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=600,
                          on_event=hear) as connection:
    import jax.numpy as jnp
    say("placed", value=float(jnp.ones(3).sum()), slices=[s.state for s in connection.slices])
"""

#: One of several that start at the same time.
ONE_OF_SEVERAL = """
queue_timeout = float(os.environ["TEST_QUEUE_S"]) or None
try:
    with isc_pathways.connect(
        expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=queue_timeout
    ) as connection:
        import jax.numpy as jnp
        say("result", value=float(jnp.arange(4.0).sum()), name=connection.proxy_job_name)
        wait_for("leave")
except errors.SlicesTaken as error:
    say("result", hint=error.hint, holders=len(error.holders))
"""


def test_three_clients_on_two_slices() -> None:
    with embedded(2), program(HOLDER) as first, program(HOLDER) as second:
        names = {first.expect("holds")["name"], second.expect("holds")["name"]}
        assert {tenant["name"] for tenant in status()["tenants"]} == names
        with program(THIRD) as third:
            taken = third.expect("taken")
            assert taken["wanted"] == {"tpuv6e:2x2": 1}
            assert taken["free"].get("tpuv6e:2x2", 0) == 0
            assert len(taken["holders"]) == 2
            owners = {holder.partition(": ")[0] for holder in taken["holders"]}
            assert len(owners) == 1, "of one user on this machine"
            assert f"{owners.pop()} holds 2" in taken["message"]
            refused = third.expect("no such type")
            assert refused["field"] == "expected_tpu_instances"
            assert "tpuv6e:2x2" in refused["expected"]
            queued = third.expect("queued")
            assert queued["position"] == 1
            assert queued["holders"]
            [entry] = eventually(lambda: status()["queue"], "the queue to be seen from outside")
            assert entry["position"] == 1
            eventually(
                lambda: "in the queue at position 1" in "".join(third.stderr), "the line about it"
            )
            first.tell("leave")
            first.expect("left")
            placed = third.expect("placed")
            assert placed["value"] == 3.0
            assert placed["slices"] == ["placed"]
            assert third.wait() == 0
        second.tell("leave")
        second.expect("left")
        assert (first.wait(), second.wait()) == (0, 0)
        eventually(nothing_left, "all to be gone")


@pytest.fixture
def no_service() -> Iterator[None]:
    """The service that a client starts ends with the test."""
    yield
    shut_down()


@pytest.mark.usefixtures("no_service")
def test_of_four_programs_without_a_service_one_starts_it_and_the_others_are_told_how() -> None:
    with contextlib.ExitStack() as undo:
        programs = [
            undo.enter_context(program(ONE_OF_SEVERAL, env={"TEST_QUEUE_S": "0"})) for _ in range(4)
        ]
        results = [running.expect("result") for running in programs]
        [holder] = [
            running for running, said in zip(programs, results, strict=True) if "value" in said
        ]
        told = [said for said in results if "hint" in said]
        assert len(told) == 3
        for said in told:
            assert said["holders"] == 1
            assert "queue_timeout=SECONDS waits for them" in said["hint"]
            assert "has the slices of its first request" in said["hint"]
            assert "`sps serve --slices tpuv6e:2x2=NUMBER` runs one with" in said["hint"]
        assert len(status()["slices"]) == 2, "the first one's, and a spare"
        holder.tell("leave")
        assert [running.wait() for running in programs] == [0] * 4


@pytest.mark.usefixtures("no_service")
def test_four_programs_without_a_service_that_wait_have_its_slice_in_turn() -> None:
    with contextlib.ExitStack() as undo:
        programs = [
            undo.enter_context(program(ONE_OF_SEVERAL, env={"TEST_QUEUE_S": "3600"}))
            for _ in range(4)
        ]
        waiting = list(programs)
        while waiting:
            served = eventually(lambda: [r for r in waiting if r.has_said], "one to be served")
            assert len(served) == 1
            assert served[0].expect("result")["value"] == 6.0
            waiting.remove(served[0])
            served[0].tell("leave")
        assert [running.wait() for running in programs] == [0] * 4


@pytest.mark.usefixtures("no_service")
def test_a_service_of_another_first_request_is_told_with_how_to_get_more() -> None:
    """One that was started with `sps serve` has what its operator gave it."""
    more = """
try:
    isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 3}).start()
except errors.InvalidRequestError as error:
    say("result", hint=error.hint)
"""
    with program(HOLDER) as holder:
        holder.expect("holds")
        with program(more) as refused:
            assert "has the slices of its first request" in refused.expect("result")["hint"]
        holder.tell("leave")
        holder.expect("left")
    shut_down()
    with embedded(1), program(more) as refused:
        assert "first request" not in refused.expect("result")["hint"]
