"""Work waits until its placement can compute; other placements do not."""

from __future__ import annotations

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import Failed, RawClient, single, split
from shared_pathways_service.servers.proxy.execution.openings import Opening
from tests.servers.proxy.conftest import LocalProxy

DATA_LOSS = 15
FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)


def test_work_begins_once_all_its_placements_have_opened(
    proxy: LocalProxy, client: RawClient
) -> None:
    epoch = proxy.slices.current()[0]
    opening = epoch.opening = Opening()
    double = client.compile(DOUBLE, [0])
    (result,) = client.execute(double, [client.put(FOUR, single(0))])
    across = client.compile(sharded_double(2), (3, 4))
    (spanning,) = client.execute(across, [client.put(EIGHT, split((3, 4)))])
    # Work on the other slice does not wait. (When it is fetched, the requests before are handled.)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(4))), FOUR)
    assert epoch.operations
    assert not any(work.running for work in epoch.operations)
    opening.settle()
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
    np.testing.assert_array_equal(client.fetch(spanning), 2 * EIGHT)
    assert not epoch.operations
    # From now on nothing waits.
    (again,) = client.execute(double, [client.put(FOUR, single(0))])
    np.testing.assert_array_equal(client.fetch(again), 2 * FOUR)


def test_what_waits_is_lost_with_its_placement(proxy: LocalProxy, client: RawClient) -> None:
    opening = proxy.slices.current()[0].opening = Opening()
    array = client.put(FOUR, single(0))
    proxy.lose(0)
    with pytest.raises(Failed) as raised:
        client.fetch(array)
    assert raised.value.code == DATA_LOSS
    # What is called back now finds that it has failed.
    opening.settle()
    assert opening.done
    assert proxy.slices.place(0, 9, "spare")
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_only_what_comes_before_the_end_is_called_back() -> None:
    opening = Opening()
    called: list[int] = []
    assert opening.add_callback(lambda: called.append(1))
    assert opening.add_callback(lambda: called.append(2))
    assert not opening.wait(0)
    opening.settle()
    opening.settle()
    assert called == [1, 2]
    assert not opening.add_callback(lambda: called.append(3))
    assert opening.wait(0)
    assert called == [1, 2]
