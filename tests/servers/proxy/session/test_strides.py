"""Host buffers with strides, uploaded and downloaded."""

from __future__ import annotations

import numpy as np
import pytest

from harness.proxy.raw import F32, Failed, RawClient, single
from tests.servers.proxy.session.arrays import FOUR, INVALID, UNIMPLEMENTED


def test_strides_in_and_out(client: RawClient) -> None:
    square = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer, array = client.new_handle(), client.new_handle()
    client.store(buffer, square.tobytes())
    client.call(
        "make_array_from_host_buffer",
        dtype={"kind": F32},
        shape={"dims": [3, 2]},
        byte_strides={"strides": [4, 12]},
        sharding=single(0),
        host_buffer_handle=buffer,
        array_handle=array,
    )
    np.testing.assert_array_equal(client.fetch(array).reshape(3, 2), square.T)
    out = client.new_handle()
    client.call(
        "copy_to_host_buffer",
        array_handle=array,
        host_buffer_handle=out,
        byte_strides={"strides": [4, 12]},
    )
    assert client.lookup(out) == square.tobytes()


def test_strides_of_an_axis_of_length_one_are_ignored(client: RawClient) -> None:
    """As JAX's client sends them: a row of a matrix that was flipped."""
    row = np.arange(3, dtype=np.float32)
    for stride in (-12, 0, 1 << 62):
        buffer, array = client.new_handle(), client.new_handle()
        client.store(buffer, row.tobytes())
        client.call(
            "make_array_from_host_buffer",
            dtype={"kind": F32},
            shape={"dims": [1, 3]},
            byte_strides={"strides": [stride, 4]},
            sharding=single(0),
            host_buffer_handle=buffer,
            array_handle=array,
        )
        np.testing.assert_array_equal(client.fetch(array).reshape(3), row)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ([4], [400]),
        ([4], [-4]),
        ([4], [4, 4]),
        ([4], [1 << 60]),
        # Beyond 64 bits they would begin anew, at the buffer's first byte.
        ([5], [1 << 62]),
        ([(1 << 32) + 1, 2], [1 << 32, 4]),
    ],
)
def test_strides_that_lead_out_of_the_buffer_are_refused(
    client: RawClient, shape: list[int], strides: list[int]
) -> None:
    buffer, array = client.new_handle(), client.new_handle()
    client.store(buffer, FOUR.tobytes())
    client.call(
        "make_array_from_host_buffer",
        dtype={"kind": F32},
        shape={"dims": shape},
        byte_strides={"strides": strides},
        sharding=single(0),
        host_buffer_handle=buffer,
        array_handle=array,
    )
    with pytest.raises(Failed, match="byte strides") as raised:
        client.ready(array)
    assert raised.value.code == INVALID


def test_strides_that_leave_gaps_are_refused(client: RawClient) -> None:
    array = client.put(FOUR, single(0))
    with pytest.raises(Failed, match="leave gaps") as raised:
        client.call(
            "copy_to_host_buffer",
            array_handle=array,
            host_buffer_handle=600,
            byte_strides={"strides": [8]},
        )
    assert raised.value.code == UNIMPLEMENTED
