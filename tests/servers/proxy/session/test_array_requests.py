"""Every request that makes, moves or drops arrays, and what each leaves behind when it fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import F32, Failed, RawClient, replicated, single, spec, split
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from tests.servers.proxy.conftest import LocalProxy, MakeClient

INVALID, NOT_FOUND, UNIMPLEMENTED = 3, 5, 12
FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)
DONATE = proxy_pb2.ARRAY_COPY_SEMANTICS_DONATE_INPUT


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


def test_pieces_of_an_array_over_two_slices_compute_in_their_own(client: RawClient) -> None:
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


def test_an_array_in_pieces_has_no_fully_replicated_shard(client: RawClient) -> None:
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


def test_of_many_unknown_handles_the_first_are_named(client: RawClient) -> None:
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


def test_of_several_arrays_one_of_which_cannot_be_none_is_made(
    proxy: LocalProxy, client: RawClient
) -> None:
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


def test_strides_of_an_axis_of_one_lead_nowhere(client: RawClient) -> None:
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


def test_remapped(client: RawClient) -> None:
    first, second = (
        client.put(FOUR, split([0, 1, 2, 3])),
        client.put(FOUR + 10, split([4, 5, 6, 7])),
    )
    plan = core_pb2.RemapPlanProto(
        input_specs=[spec([4], split([0, 1, 2, 3])), spec([4], split([4, 5, 6, 7]))],
        output_specs=[spec([4], split([0, 2, 4, 6]))],
    )
    for source, target in ((0, 0), (1, 2)):
        plan.mappings.add(
            in_array=source,
            out_array=0,
            from_start=[0],
            from_end=[4],
            from_step=[2],
            to_start=[target],
            to_end=[target + 2],
            to_step=[1],
        )
    (made,) = client.call(
        "remap_arrays", plan=plan, array_handles=[first, second], copy_semantics=DONATE
    ).array_handles
    np.testing.assert_array_equal(client.fetch(made), [0, 2, 10, 12])
    assert client.call("is_array_deleted", array_handle=first).deleted


def test_copied_to_other_devices(client: RawClient) -> None:
    array = client.put(EIGHT, split(range(4)))
    (copy,) = client.call(
        "copy_arrays", array_handles=[array], device_ids=[7, 6, 5, 4], copy_semantics=DONATE
    ).array_handles
    np.testing.assert_array_equal(client.fetch(copy), EIGHT)
    with pytest.raises(Failed, match="deleted or donated"):
        client.fetch(array)


def test_deletion_does_not_disturb_who_reads_already(client: RawClient) -> None:
    buffer, array = client.new_handle(), client.new_handle()
    client.make(array, buffer, [4], single(0))
    program = client.compile(DOUBLE, [0])
    (result,) = client.execute(program, [array])
    assert not client.call("is_array_deleted", array_handle=array).deleted
    future = client.call("delete_array", array_handle=[array]).deletion_future_handle
    client.call("check_future", future_handle=future)
    assert client.call("is_array_deleted", array_handle=array).deleted
    client.call("destruct_array", array_handle=[array])
    with pytest.raises(Failed) as raised:
        client.call("is_array_deleted", array_handle=array)
    assert raised.value.code == NOT_FOUND
    # Only now does the array's data come.
    client.store(buffer, FOUR.tobytes())
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)


def test_arrays_that_are_errors(client: RawClient) -> None:
    client.call(
        "make_error_arrays",
        error={"code": 10, "message": "no such luck"},
        array_specs=[spec([8], split(range(4)))],
        array_handles=[5],
    )
    parts = client.call("disassemble_into_single_device_arrays", array_handle=5).array_handles
    for handle in (5, parts[3]):
        with pytest.raises(Failed, match="no such luck") as raised:
            client.fetch(handle)
        assert raised.value.code == 10


FAILING: dict[str, dict[str, Any]] = {
    "assemble_array_from_single_device_arrays": {
        "single_device_array_handles": [999],
        "sharding": split([0]),
        "result_handle": 500,
    },
    "disassemble_into_single_device_arrays": {"array_handle": 999, "result_handles": [500]},
    "fully_replicated_shard": {"array_handle": 999, "result_handle": 500},
    "copy_arrays": {"array_handles": [999], "result_handles": [500]},
    "remap_arrays": {"array_handles": [999], "result_handles": [500]},
    "loaded_executable_execute": {"loaded_executable_handle": 9, "result_array_handle": [500]},
    "make_array_from_host_buffer": {"array_handle": 500, "dtype": {"kind": 99}},
    "bitcast_arrays": {"array_handles": [999], "result_handles": [500]},
    "reshard_arrays": {"array_handles": [999], "result_handles": [500]},
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_failed_request_leaves_its_error_behind_the_handles_it_named(
    client: RawClient, kind: str
) -> None:
    with pytest.raises(Failed) as raised:
        client.call(kind, **FAILING[kind])
    with pytest.raises(Failed) as later:
        client.fetch(500)
    assert (later.value.code, later.value.message) == (raised.value.code, raised.value.message)


UNKNOWN = [
    "loaded_executable_mpmd_metadata",
    "loaded_executable_mpmd_cost_analysis",
    "loaded_host_callback_poll",
    "loaded_host_callback_return",
]


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_is_not_served_is_named(client: RawClient, kind: str) -> None:
    with pytest.raises(Failed, match=kind) as raised:
        client.call(kind)
    assert raised.value.code == UNIMPLEMENTED


def test_every_request_of_the_protocol_is_served_or_named_as_not() -> None:
    from shared_pathways_service.servers.proxy.session.handlers import HANDLERS

    kinds = {f.name.removesuffix("_request") for f in proxy_pb2.IfrtRequest.DESCRIPTOR.fields}
    served = {name.removesuffix("_request") for name in HANDLERS}
    assert kinds - served == {*UNKNOWN, "request_metadata"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("fully_replicated_shard", lambda: {"array_handle": 1 << 40}),
        ("check_value_ready", lambda: {"value_handles": [1 << 40]}),
        ("check_future", lambda: {"future_handle": 1 << 40}),
        ("loaded_executable_metadata", lambda: {"loaded_executable_handle": 1 << 40}),
        ("loaded_executable_fetch_execute_result", lambda: {"result_status_handle": 1 << 40}),
    ],
)
def test_unknown_handles(client: RawClient, kind: str, fields: Callable[[], Any]) -> None:
    with pytest.raises(Failed, match="nknown") as raised:
        client.call(kind, **fields())
    assert raised.value.code == NOT_FOUND


@pytest.mark.parametrize(
    "bad",
    [
        {"sharding": single(8)},
        {"sharding": single(-1)},
        {"sharding": split([0, 0])},
        {"shape": {"dims": [-4]}},
        {"shape": {"dims": [5]}, "sharding": split([0, 1])},
        {"sharding": core_pb2.ShardingProto()},
    ],
)
def test_arrays_that_cannot_be(client: RawClient, bad: dict[str, Any]) -> None:
    fields = {"dtype": {"kind": F32}, "shape": {"dims": [4]}, "sharding": single(0)}
    with pytest.raises(Failed) as raised:
        client.call("make_array_from_host_buffer", **{**fields, **bad}, array_handle=500)
    assert raised.value.code in {INVALID, UNIMPLEMENTED}


def test_default_layout_and_assignment(client: RawClient) -> None:
    layout = client.call("get_default_layout", dtype={"kind": F32}, dims=[2, 3, 4])
    assert layout.serialized_pjrt_layout == b"{2,1,0}"
    assignment = client.call(
        "get_default_device_assignment", num_replicas=2, num_partitions=3
    ).device_assignment
    assert [list(c.replica_device_ids) for c in assignment.computation_devices] == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]
    with pytest.raises(Failed):
        client.call("get_default_device_assignment", num_replicas=3, num_partitions=3)


def test_devices_tell_slice_and_coordinates(proxy: LocalProxy, connect: MakeClient) -> None:
    client = connect(proxy.address, send_init=False)
    devices = client.call("init").all_devices
    seen = [
        (
            d.attributes.attributes["slice_index"].int64_value,
            list(d.attributes.attributes["coords"].int64_list_value.elements),
        )
        for d in devices
    ]
    square = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]
    assert seen == [(index, coords) for index in (0, 1) for coords in square]
    assert {d.device_kind for d in devices} == {"TPU v6 lite"}
    assert {d.platform_name for d in devices} == {"cpu"}


def test_donated_arguments_are_gone_but_were_read_before(client: RawClient) -> None:
    donating = client.compile(sharded_double(4, ", jax.buffer_donor = true"), range(4))
    keeping = client.compile(sharded_double(4), range(4))
    array = client.put(EIGHT, split(range(4)))
    (kept,) = client.execute(keeping, [array])
    (taken,) = client.execute(donating, [array])
    assert client.call("is_array_deleted", array_handle=array).deleted
    for result in (kept, taken):
        np.testing.assert_array_equal(client.fetch(result), 2 * EIGHT)
    metadata = client.call("loaded_executable_metadata", loaded_executable_handle=donating)
    assert list(metadata.donated_input_indices.donated_input_indices) == [0]
    # An argument that the client must keep is not taken.
    second = client.put(EIGHT, split(range(4)))
    client.call(
        "loaded_executable_execute",
        loaded_executable_handle=donating,
        args_handles=[second],
        result_array_handle=[600],
        execute_options={"non_donatable_input_indices": [0]},
    )
    np.testing.assert_array_equal(client.fetch(600), 2 * EIGHT)
    np.testing.assert_array_equal(client.fetch(second), EIGHT)


def test_programs_are_described_and_dropped(client: RawClient) -> None:
    program = client.compile(DOUBLE, [2])
    metadata = client.call("loaded_executable_metadata", loaded_executable_handle=program)
    (layout,) = metadata.parameter_layouts_list.layouts
    assert list(layout.minor_to_major) == [0]
    assert metadata.compiled_memory_stats.output_size_in_bytes == 16
    cost = client.call("loaded_executable_cost_analysis", loaded_executable_handle=program)
    assert cost.attributes.attributes["flops"].float_value == 4
    text = client.call(
        "loaded_executable_human_readable_program_text", loaded_executable_handle=program
    )
    assert "HloModule double" in text.human_readable_program_text
    assert not client.call(
        "loaded_executable_is_deleted", loaded_executable_handle=program
    ).is_deleted
    future = client.call("loaded_executable_delete", loaded_executable_handle=program).future_handle
    client.call("check_future", future_handle=future)
    assert client.call("loaded_executable_is_deleted", loaded_executable_handle=program).is_deleted
    with pytest.raises(Failed, match="deleted"):
        client.execute(program, [client.put(FOUR, single(2))])
    client.call("loaded_executable_destruct", loaded_executable_handle=program)
    with pytest.raises(Failed, match="Unknown"):
        client.execute(program, [])


@pytest.mark.parametrize(
    "text",
    ["", "no program", "module {}", DOUBLE.replace("add", "frobnicate")],
    ids=["empty", "words", "no main", "unknown operation"],
)
def test_programs_that_are_none_are_refused(client: RawClient, text: str) -> None:
    with pytest.raises(Failed) as raised:
        client.compile(text, [0])
    assert raised.value.code in {INVALID, 13}
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_programs_of_another_kind_are_refused_by_its_name(client: RawClient) -> None:
    # What pathwaysutils sends for Google's own server, say.
    with pytest.raises(Failed, match=r"xla::ifrt::PluginProgram.* only those of XLA") as raised:
        client.call("compile", program={"type_name": "xla::ifrt::PluginProgram", "data": b"{}"})
    assert raised.value.code == UNIMPLEMENTED
    with pytest.raises(Failed, match="host callbacks") as raised:
        client.call("compile", host_callbacks=[b""])
    assert raised.value.code == UNIMPLEMENTED


def test_calls_that_do_not_fit_the_program(client: RawClient) -> None:
    program = client.compile(DOUBLE, [0])
    array = client.put(FOUR, single(0))
    for arguments, results in (([], 1), ([array, array], 1), ([array], 2)):
        with pytest.raises(Failed) as raised:
            client.execute(program, arguments, results)
        assert raised.value.code == INVALID
    # Of the wrong shape, or on the wrong device: only the program can tell.
    for other in (client.put(EIGHT, single(0)), client.put(FOUR, single(1))):
        (result,) = client.execute(program, [other])
        with pytest.raises(Failed):
            client.ready(result)
