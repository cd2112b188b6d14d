"""More memory than the limit is RESOURCE_EXHAUSTED, later, and the proxy lives on."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import F32, Failed, single, split
from shared_pathways_service.events.proxy import MemoryNearLimit
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from shared_pathways_service.servers.proxy.memory import Charge, DeviceMemory
from tests.servers.proxy.conftest import MakeClient, MakeProxy

EXHAUSTED = 8
FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)


def test_arrays_beyond_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    client = connect(make_proxy(memory_limit=40).address)
    held = [client.put(FOUR, single(0)), client.put(FOUR, single(0))]
    client.ready(*held)
    too_much = client.put(FOUR, single(0))
    for attempt in (client.ready, client.fetch):
        with pytest.raises(Failed) as raised:
            attempt(too_much)
        assert raised.value.code == EXHAUSTED
        assert (
            "needs 16 bytes on device 0, whose limit (--device_memory_limit_bytes) is 40 bytes, "
            "of which 32 are held"
        ) in raised.value.message
    # Another device has room, and so has this one after a deletion.
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(1))), FOUR)
    client.call("destruct_array", array_handle=[held[0]])
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_a_limit_of_the_resource_manager_is_named_as_such(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(memory_limit=40)
    proxy.engine.memory.lower(1000, "--proxy_memory_limit_bytes of the resource manager")
    client = connect(proxy.address)
    with pytest.raises(Failed, match=r"\(--device_memory_limit_bytes\) is 40 bytes"):
        client.fetch(client.put(np.arange(12, dtype=np.float32), single(0)))
    proxy.engine.memory.lower(8, "--proxy_memory_limit_bytes of the resource manager")
    with pytest.raises(Failed, match=r"of the resource manager\) is 8 bytes") as raised:
        client.fetch(client.put(FOUR, single(0)))
    assert "--device_memory_limit_bytes" not in raised.value.message


def test_use_near_the_limit_is_reported_once_until_it_fell_far_below() -> None:
    memory = DeviceMemory(2, 0)
    events: list[MemoryNearLimit] = []
    memory.on_near_limit = events.append
    assert memory.charge([0], 1000, "no limit, no report") is None
    memory.lower(100, "--limit")
    most = [memory.charge([0], 90, "an array")]
    assert events == [], "90 % is not above 90 %"
    more = [memory.charge([0, 1], 5, "an array")]
    assert [(event.device, event.used_bytes, event.limit_bytes) for event in events] == [
        (0, 95, 100)
    ]
    assert events[0].reason == "device 0 has 95 of 100 bytes in use"
    other = [memory.charge([1], 90, "an array")]
    more.clear()
    more.append(memory.charge([0], 5, "an array"))
    most.clear()
    more.append(memory.charge([0], 95, "an array"))
    assert len(events) == 1, "the other device is still near its limit"
    other.clear()
    more.clear()
    more.append(memory.charge([1, 0], 91, "an array"))
    assert [event.device for event in events] == [0, 1]


def test_programs_beyond_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    client = connect(make_proxy(memory_limit=40).address)
    program = client.compile(DOUBLE, [0])
    array = client.put(FOUR, single(0))
    (first,) = client.execute(program, [array])
    client.ready(first)
    (second,) = client.execute(program, [array])
    with pytest.raises(Failed, match="program double needs 16 bytes on device 0") as raised:
        client.ready(second)
    assert raised.value.code == EXHAUSTED
    client.call("delete_array", array_handle=[first])
    (third,) = client.execute(program, [array])
    np.testing.assert_array_equal(client.fetch(third), 2 * FOUR)


def test_a_donating_program_needs_no_room_for_its_result(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(memory_limit=8)
    client = connect(proxy.address)
    text = sharded_double(4, ", tf.aliasing_output = 0 : i32")
    program = client.compile(text, range(4))
    array = client.put(EIGHT, split(range(4)))
    for _ in range(3):
        (array,) = client.execute(program, [array])
    np.testing.assert_array_equal(client.fetch(array), 8 * EIGHT)
    assert proxy.engine.memory.held(0) == 8


def test_copies_and_views(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(memory_limit=40)
    client = connect(proxy.address)
    array = client.put(EIGHT, split(range(4)))
    parts = client.call("disassemble_into_single_device_arrays", array_handle=array).array_handles
    client.ready(*parts)
    assert proxy.engine.memory.held(0) == 8
    client.call("destruct_array", array_handle=[array, *parts[1:]])
    # One view is enough to keep the memory.
    assert proxy.engine.memory.held(0) == 8
    (copy,) = client.call("copy_arrays", array_handles=parts[:1], device_ids=[7]).array_handles
    client.ready(copy)
    assert proxy.engine.memory.held(7) == 8
    big = client.put(np.zeros(10, np.float32), single(6))
    (copy,) = client.call("copy_arrays", array_handles=[big], device_ids=[7]).array_handles
    with pytest.raises(Failed, match="a copy of an array needs 40 bytes on device 7"):
        client.ready(copy)


def test_views_of_views_do_not_pile_up(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(memory_limit=40)
    client = connect(proxy.address)
    array = client.put(EIGHT, split(range(4)))
    for _ in range(3):
        parts = client.call(
            "disassemble_into_single_device_arrays", array_handle=array
        ).array_handles
        client.call("destruct_array", array_handle=[array])
        array = client.call(
            "assemble_array_from_single_device_arrays",
            shape={"dims": [8]},
            sharding=split(range(4)),
            single_device_array_handles=parts,
        ).array_handle
        client.ready(array)
        client.call("destruct_array", array_handle=parts)
    (session,) = proxy.service.sessions
    held = session.arrays[array].charge
    assert isinstance(held, tuple)
    assert [type(charge) for charge in held] == [Charge]
    assert proxy.engine.memory.held(0) == 8
    del held
    client.call("destruct_array", array_handle=[array])
    gc.collect()
    assert proxy.engine.memory.held(0) == 0


def test_a_shard_of_negative_size_is_refused(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(memory_limit=40)
    client = connect(proxy.address)
    sharding = core_pb2.ConcreteEvenShardingProto()
    sharding.devices.device_ids.append(0)
    sharding.shape.dims.append(4)
    sharding.shard_shape.dims.append(-100)
    serialized = core_pb2.Serialized(
        type_name="xla::ifrt::ConcreteEvenSharding", data=sharding.SerializeToString()
    )
    client.store(1, b"1234")
    item = proxy_pb2.MakeArraysFromHostBufferShardsRequest.MakeArraysFromHostBufferShardsSpec()
    item.array_spec.dtype.kind = F32
    item.array_spec.shape.dims.append(4)
    item.array_spec.sharding.serialized_sharding.CopyFrom(serialized)
    item.addressable_shard_indices.add().indices.append(0)
    item.host_buffers.add(host_buffer_handle=1, dtype={"kind": F32}, shape={"dims": [-100]})
    with pytest.raises(Failed, match="negative"):
        client.call("make_arrays_from_host_buffer_shards", specs=[item], array_handles=[9])
    assert proxy.engine.memory.held(0) == 0
