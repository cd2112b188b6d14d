"""Requests that move, delete or describe arrays, and the errors that failed ones leave behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE
from harness.proxy.raw import F32, Failed, RawClient, single, spec, split
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from tests.servers.proxy.conftest import LocalProxy, MakeClient
from tests.servers.proxy.session.arrays import (
    DONATE,
    EIGHT,
    FOUR,
    INVALID,
    NOT_FOUND,
    UNIMPLEMENTED,
)


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


def test_a_deletion_does_not_disturb_pending_reads(client: RawClient) -> None:
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


def test_error_arrays_report_their_error(client: RawClient) -> None:
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
def test_a_failed_request_leaves_its_error_in_its_handles(client: RawClient, kind: str) -> None:
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
def test_unserved_requests_are_named(client: RawClient, kind: str) -> None:
    with pytest.raises(Failed, match=kind) as raised:
        client.call(kind)
    assert raised.value.code == UNIMPLEMENTED


def test_every_request_of_the_protocol_is_served_or_listed_as_unserved() -> None:
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
def test_impossible_arrays_are_refused(client: RawClient, bad: dict[str, Any]) -> None:
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


def test_devices_have_slice_and_coordinates(proxy: LocalProxy, connect: MakeClient) -> None:
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
    hosts = [d.attributes.attributes["virtual_task_index"].int64_value for d in devices]
    assert hosts == [0] * 8
    assert {d.device_kind for d in devices} == {"TPU v6 lite"}
    assert {d.platform_name for d in devices} == {"cpu"}
