"""A slice is lost: what was there is gone, at once and for good; what was elsewhere is not."""

from __future__ import annotations

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import Failed, RawClient, single, split
from tests.servers.proxy.conftest import LocalProxy

pytestmark = pytest.mark.race

DATA_LOSS = 15
FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)


def assert_lost(raised: pytest.ExceptionInfo[Failed], index: int) -> None:
    assert raised.value.code == DATA_LOSS
    assert f"virtual slice {index} (tpuv6e:2x2)" in raised.value.message
    assert "worker 0 is gone" in raised.value.message


def test_arrays_of_the_lost_slice_are_gone_and_the_others_are_not(
    proxy: LocalProxy, client: RawClient
) -> None:
    lost, kept = client.put(FOUR, single(0)), client.put(FOUR, single(4))
    across = client.put(EIGHT, split(range(8)))
    proxy.lose(0)
    for array in (lost, across):
        with pytest.raises(Failed) as raised:
            client.fetch(array)
        assert_lost(raised, 0)
        with pytest.raises(Failed) as raised:
            client.ready(array)
        assert_lost(raised, 0)
    np.testing.assert_array_equal(client.fetch(kept), FOUR)


def test_an_array_is_not_seen_again_after_its_slice_was_placed_anew(
    proxy: LocalProxy, client: RawClient
) -> None:
    array = client.put(FOUR, single(0))
    program = client.compile(DOUBLE, [0])
    (result,) = client.execute(program, [array])
    client.ready(result)
    proxy.lose(0)
    assert proxy.slices.place(0, 7, "spare")
    for handle in (array, result):
        with pytest.raises(Failed) as raised:
            client.fetch(handle)
        assert_lost(raised, 0)
    # What is computed from it is lost as well, though it would run on the new placement.
    (derived,) = client.execute(program, [array])
    with pytest.raises(Failed) as raised:
        client.fetch(derived)
    assert_lost(raised, 0)
    # The same program runs there, on new data.
    (again,) = client.execute(program, [client.put(FOUR, single(0))])
    np.testing.assert_array_equal(client.fetch(again), 2 * FOUR)


def test_dispatch_on_an_unplaced_slice_is_ok_and_its_results_are_not(
    proxy: LocalProxy, client: RawClient
) -> None:
    program = client.compile(sharded_double(8), range(8))
    array = client.put(EIGHT, split(range(8)))
    proxy.lose(1)
    status = client.new_handle()
    result = client.new_handle()
    response = client.call(
        "loaded_executable_execute",
        loaded_executable_handle=program,
        args_handles=[array],
        result_array_handle=[result],
        result_status_handle=status,
    )
    (output,) = response.outputs
    assert (output.array_handle, list(output.shape.dims)) == (result, [8])
    for check in (
        lambda: client.ready(result),
        lambda: client.call("loaded_executable_fetch_execute_result", result_status_handle=status),
        lambda: client.ready(client.put(FOUR, single(5))),
    ):
        with pytest.raises(Failed) as raised:
            check()
        assert raised.value.code == DATA_LOSS
        assert "virtual slice 1" in raised.value.message


def test_a_copy_on_another_slice_outlives_its_source(proxy: LocalProxy, client: RawClient) -> None:
    source = client.put(EIGHT, split(range(4)))
    (copy,) = client.call(
        "copy_arrays", array_handles=[source], device_ids=[4, 5, 6, 7], result_handles=[99]
    ).array_handles
    client.ready(copy)
    proxy.lose(0)
    np.testing.assert_array_equal(client.fetch(copy), EIGHT)
    with pytest.raises(Failed) as raised:
        client.fetch(source)
    assert_lost(raised, 0)


def test_old_news_of_a_slice_changes_nothing(proxy: LocalProxy, client: RawClient) -> None:
    assert proxy.slices.place(0, 5, "spare")
    array = client.put(FOUR, single(0))
    assert not proxy.slices.unplace(0, 1, "late news")
    assert not proxy.slices.place(0, 5, "spare")
    assert not proxy.slices.place(0, 3, "elsewhere")
    np.testing.assert_array_equal(client.fetch(array), FOUR)
    proxy.lose(0)
    assert not proxy.slices.place(0, 5, "spare")
    assert proxy.slices.place(0, 6, "spare")


def test_work_that_waits_for_a_lost_slice_fails_at_once(
    proxy: LocalProxy, client: RawClient
) -> None:
    # The buffer never comes: the array stays pending.
    pending = client.new_handle()
    client.make(pending, 12345, [4], single(0))
    program = client.compile(DOUBLE, [0])
    (result,) = client.execute(program, [pending])
    waiting = [client.begin_ready(result), client.begin_fetch(result)[0]]
    assert not any(w.future.done() for w in waiting)
    proxy.lose(0)
    for wait in waiting:
        with pytest.raises(Failed) as raised:
            wait.result()
        assert_lost(raised, 0)
