"""Arrays that are split into single shards, and assembled from them."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE
from harness.proxy.raw import F32, Failed, RawClient, replicated, single, spec, split
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from tests.servers.proxy.conftest import LocalProxy
from tests.servers.proxy.session.arrays import EIGHT, FOUR, INVALID, NOT_FOUND


def test_split_and_joined(client: RawClient) -> None:
    whole = client.put(EIGHT, split(range(8)))
    parts = client.call("disassemble_into_single_device_arrays", array_handle=whole).array_handles
    assert len(parts) == 8
    assert all(handle >= 1 << 63 for handle in parts)
    assert [client.fetch(part)[0] for part in parts] == list(range(8))
    joined = client.call(
        "assemble_array_from_single_device_arrays",
        shape=core_pb2.ShapeProto(dims=[8]),
        dtype=core_pb2.DTypeProto(kind=F32),
        sharding=split(range(8)),
        single_device_array_handles=parts,
    ).array_handle
    np.testing.assert_array_equal(client.fetch(joined), EIGHT)


def test_shards_on_two_slices_compute_on_their_own_slice(client: RawClient) -> None:
    whole = client.put(np.arange(32, dtype=np.float32), split(range(8)))
    parts = client.call("disassemble_into_single_device_arrays", array_handle=whole).array_handles
    doubles = {}
    for device in (1, 6):
        program = client.compile(DOUBLE, [device])
        for _ in range(2):
            (doubles[device],) = client.execute(program, [parts[device]])
        expected = 2 * np.arange(4 * device, 4 * device + 4)
        np.testing.assert_array_equal(client.fetch(doubles[device]), expected)
    joined = client.call(
        "assemble_array_from_single_device_arrays",
        shape=core_pb2.ShapeProto(dims=[8]),
        sharding=split([1, 6]),
        single_device_array_handles=[parts[1], doubles[6]],
    ).array_handle
    np.testing.assert_array_equal(client.fetch(joined), [4, 5, 6, 7, 48, 50, 52, 54])


def test_one_shard_of_a_replicated_array(client: RawClient) -> None:
    array = client.put(FOUR, replicated([1, 5]))
    shard = client.call("fully_replicated_shard", array_handle=array, result_handle=77).array_handle
    assert shard == 77
    np.testing.assert_array_equal(client.fetch(shard), FOUR)


def test_a_sharded_array_has_no_fully_replicated_shard(client: RawClient) -> None:
    array = client.put(FOUR, split([0, 1]))
    with pytest.raises(Failed, match=r"\(4,\) in shards of \(2,\)") as raised:
        client.call("fully_replicated_shard", array_handle=array)
    assert raised.value.code == INVALID


def test_shards_are_assembled_in_the_memory_that_they_are_in(client: RawClient) -> None:
    pinned = single(0)
    message = core_pb2.SingleDeviceShardingProto(device_id=0, memory_kind="pinned_host")
    pinned.serialized_sharding.data = message.SerializeToString()
    array = client.put(FOUR, pinned)
    assemble = functools.partial(
        client.call,
        "assemble_array_from_single_device_arrays",
        shape={"dims": [4]},
        single_device_array_handles=[array],
    )
    with pytest.raises(Failed, match="pinned_host memory where device is due") as raised:
        assemble(sharding=single(0))
    assert raised.value.code == INVALID
    np.testing.assert_array_equal(client.fetch(assemble(sharding=pinned).array_handle), FOUR)


def test_tokens_are_assembled_in_one_shape_and_of_tokens_only(client: RawClient) -> None:
    token = core_pb2.DTypeProto(kind=core_pb2.DTypeProto.KIND_TOKEN)
    assemble = functools.partial(
        client.call,
        "assemble_array_from_single_device_arrays",
        dtype=token,
        sharding=single(0),
        single_device_array_handles=[client.put(FOUR, single(0))],
    )
    for dims, message in (([4], r"the shape \(0,\), not \(4,\)"), ([0], "another device or type")):
        with pytest.raises(Failed, match=message) as raised:
            assemble(shape={"dims": dims})
        assert raised.value.code == INVALID


def test_the_first_of_many_unknown_handles_are_named(client: RawClient) -> None:
    array = client.put(FOUR, single(0))
    # (So many that nothing may be done for each pair of them.)
    handles = [*range(1 << 40, (1 << 40) + 200_000), array]
    future = client.call("delete_array", array_handle=handles).deletion_future_handle
    with pytest.raises(Failed, match=r"1099511627776, .* and 199990 more$") as raised:
        client.call("check_future", future_handle=future)
    assert raised.value.code == NOT_FOUND
    assert client.call("is_array_deleted", array_handle=array).deleted


def test_shards_from_several_buffers_one_of_them_twice(client: RawClient) -> None:
    first, second, array = client.new_handle(), client.new_handle(), client.new_handle()
    message = proxy_pb2.MakeArraysFromHostBufferShardsRequest
    item = message.MakeArraysFromHostBufferShardsSpec(
        array_spec=spec([4], split(range(4), of=2)),
        addressable_shard_indices=[
            message.ShardIndices(indices=[0, 1]),
            message.ShardIndices(indices=[2, 3]),
        ],
        host_buffers=[
            message.HostBuffer(
                dtype=core_pb2.DTypeProto(kind=F32),
                shape=core_pb2.ShapeProto(dims=[2]),
                host_buffer_handle=handle,
            )
            for handle in (first, second)
        ],
    )
    pending = client.begin(
        "make_arrays_from_host_buffer_shards", specs=[item], array_handles=[array]
    )
    # The buffers come after the request, the second one first.
    client.store(second, FOUR[2:].tobytes())
    client.store(first, FOUR[:2].tobytes())
    assert list(pending.result().array_handles) == [array]
    np.testing.assert_array_equal(client.fetch(array), FOUR)


def test_one_impossible_array_of_several_refuses_all(proxy: LocalProxy, client: RawClient) -> None:
    buffer = {"dtype": {"kind": F32}, "shape": {"dims": [4]}, "host_buffer_handle": 70}
    good = {
        "array_spec": spec([4], single(0)),
        "addressable_shard_indices": [{"indices": [0]}],
        "host_buffers": [buffer],
    }
    with pytest.raises(Failed, match="shards without a host buffer"):
        client.call(
            "make_arrays_from_host_buffer_shards",
            specs=[good, {"array_spec": spec([4], single(0))}],
        )
    (session,) = proxy.service.sessions
    assert not session.arrays
