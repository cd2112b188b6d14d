"""Work that waits for work that waits for work: a chain of any length is settled, and in order."""

from __future__ import annotations

import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.servers.proxy.execution.virtual_slices import SliceChange
from tests.servers.proxy.conftest import LocalProxy, MakeClient

DATA_LOSS = 15
FOUR = np.arange(4, dtype=np.float32)
LONG = 1000


def chain(client: RawClient, buffer: int, kind: str = "copy_arrays") -> list[int]:
    """Returns arrays of which each is made of the one before, the first of a buffer to come."""
    (first,) = handles = [client.new_handle()]
    client.make(first, buffer, [4], single(0))
    handles += client.execute(client.compile(DOUBLE, [0]), [first])
    for number in range(LONG):
        source, made = handles[-1], client.new_handle()
        if kind == "copy_arrays":
            ids = [number % 4]
            client.call(kind, array_handles=[source], device_ids=ids, result_handles=[made])
        else:
            client.call(kind, array_handle=source, result_handle=made)
        handles.append(made)
    return handles


@pytest.mark.parametrize("kind", ["copy_arrays", "fully_replicated_shard"])
def test_its_end_comes_and_the_slice_goes_on(
    proxy: LocalProxy, connect: MakeClient, kind: str
) -> None:
    client, other = connect(proxy.address), connect(proxy.address)
    handles = chain(client, 5000, kind)
    waiting = [client.begin_ready(handles[at]) for at in (LONG // 2, -1)]
    assert not any(wait.future.done() for wait in waiting)
    client.store(5000, FOUR.tobytes())
    for wait in waiting:
        wait.result()
    np.testing.assert_array_equal(client.fetch(handles[-1]), 2 * FOUR)
    (result,) = other.execute(other.compile(DOUBLE, [0]), [other.put(FOUR, single(0))])
    np.testing.assert_array_equal(other.fetch(result), 2 * FOUR)


@pytest.mark.race
def test_it_fails_with_its_slice(proxy: LocalProxy, client: RawClient) -> None:
    handles = chain(client, 5000)
    waiting = [client.begin_ready(handles[at]) for at in (1, LONG // 2, -1)]
    told: list[SliceChange] = []
    proxy.slices.add_listener(told.append)
    proxy.lose(0)
    assert [change.index for change in told] == [0]
    for wait in waiting:
        with pytest.raises(Failed) as raised:
            wait.result()
        assert raised.value.code == DATA_LOSS


@pytest.mark.race
def test_it_ends_with_its_session(proxy: LocalProxy, connect: MakeClient) -> None:
    with RawClient(proxy.address) as leaving:
        chain(leaving, 5000)
        (session,) = proxy.service.sessions
        assert len(session.arrays) > LONG
    wait_until("the end of the session", lambda: not proxy.service.sessions)
    wait_until("the end of its work", lambda: not proxy.slices.current()[0].operations)
    wait_until("the end of what it held", lambda: not session.arrays)
    client = connect(proxy.address)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
