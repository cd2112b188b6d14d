"""Remap plans, by shards and by devices, and those that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE
from harness.proxy.raw import Failed, RawClient, single, spec, split
from shared_pathways_service.protocol.ifrt import core_pb2
from tests.servers.proxy.conftest import LocalProxy
from tests.servers.proxy.session.arrays import (
    DATA_LOSS,
    EIGHT,
    FOUR,
    HALVES,
    INVALID,
    REUSE,
    pieces,
    pinned,
)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"from_start": [0, 0]}, "different numbers or lengths"),
        ({"from_end": [0]}, "different numbers or lengths"),
        ({"to_end": [0]}, "different numbers or lengths"),
        ({"from_step": [0]}, "a step below 1"),
        ({"from_end": [2]}, "absent shards"),
        ({"to_end": [2]}, "absent shards"),
        ({"from_end": [2], "to_end": [2]}, "absent shards"),
        ({"from_start": [-1], "to_start": [-1]}, "absent shards"),
        ({"from_start": [-1 << 62], "to_start": [-1 << 62]}, "absent shards"),
        ({"from_end": [1 << 62], "to_end": [1 << 62]}, "absent shards"),
        ({"in_array": 1}, "absent arrays"),
    ],
)
def test_invalid_remap_plans(client: RawClient, changed: dict[str, Any], message: str) -> None:
    array = client.put(FOUR, single(0))
    mapping = {"from_start": [0], "from_end": [1], "from_step": [1]}
    mapping |= {"to_start": [0], "to_end": [1], "to_step": [1]}
    one = [spec([4], single(0))]
    plan = {"input_specs": one, "output_specs": one, "mappings": [{**mapping, **changed}]}
    with pytest.raises(Failed, match=message) as raised:
        client.call("remap_arrays", plan=plan, array_handles=[array])
    assert raised.value.code == INVALID


def by_devices(*outputs: tuple[int, Sequence[tuple[int, Sequence[int]]]]) -> list[Any]:
    """A plan as clients send it from version 6 of the serialised values on."""
    plan = []
    for out_array, inputs in outputs:
        entry = core_pb2.RemapPlanProto.InputDevicesForOutput(out_array=out_array)
        for in_array, devices in inputs:
            taken = entry.input_devices.add(in_array=in_array)
            taken.device_list.device_ids.extend(devices)
        plan.append(entry)
    return plan


def test_a_remap_plan_by_devices(client: RawClient) -> None:
    first, second = client.put(EIGHT, split([0, 1])), client.put(EIGHT + 8, split([2, 3]))
    plan = {
        "input_specs": [spec([8], split([0, 1])), spec([8], split([2, 3]))],
        "output_specs": [spec([8], split([3, 0])), spec([8], split([1, 2]))],
        "input_devices_for_output": by_devices(
            (0, [(0, [0]), (1, [3])]), (1, [(1, [2]), (0, [1])])
        ),
    }
    made = client.call("remap_arrays", plan=plan, array_handles=[first, second]).array_handles
    assert [pieces(client, array) for array in made] == [
        [[12, 13, 14, 15], [0, 1, 2, 3]],
        [[4, 5, 6, 7], [8, 9, 10, 11]],
    ]


def test_a_remap_plan_in_both_forms(client: RawClient) -> None:
    """Of versions 4 and 5: the devices go before the intervals, output by output."""
    array = client.put(EIGHT, split([0, 1]))
    whole = {"from_start": [0], "from_end": [2], "from_step": [1]}
    whole |= {"to_start": [0], "to_end": [2], "to_step": [1]}
    plan = {
        "input_specs": [spec([8], split([0, 1]))],
        "output_specs": [spec([8], split([0, 1])), spec([8], split([1, 0]))],
        "mappings": [whole, {**whole, "out_array": 1}],
        "input_devices_for_output": by_devices((1, [(0, [0, 1])])),
    }
    made = client.call("remap_arrays", plan=plan, array_handles=[array]).array_handles
    assert [pieces(client, one) for one in made] == [HALVES, HALVES[::-1]]


def test_intervals_of_outputs_by_devices_are_not_expanded(client: RawClient) -> None:
    array = client.put(FOUR, single(0))
    mapping = {"from_start": [0], "from_end": [1 << 62], "from_step": [1]}
    mapping |= {"to_start": [0], "to_end": [1 << 62], "to_step": [1]}
    one = [spec([4], single(0))]
    plan = {
        "input_specs": one,
        "output_specs": one,
        "mappings": [mapping],
        "input_devices_for_output": by_devices((0, [(0, [0])])),
    }
    (made,) = client.call("remap_arrays", plan=plan, array_handles=[array]).array_handles
    assert client.fetch(made).tolist() == FOUR.tolist()


def test_a_remap_plan_that_fills_a_shard_twice_is_refused(
    client: RawClient,
) -> None:
    array = client.put(FOUR, single(0))
    mapping = {"from_start": [0], "from_end": [1], "from_step": [1]}
    mapping |= {"to_start": [0], "to_end": [1], "to_step": [1]}
    repeated = {name: bounds * 1000 for name, bounds in mapping.items()}
    # Had it read on, it would have named these.
    absent = {**mapping, "from_end": [2], "to_end": [2]}
    one = [spec([4], single(0))]
    for mappings in ([repeated, absent], [mapping, mapping, absent]):
        plan = {"input_specs": one, "output_specs": one, "mappings": mappings}
        with pytest.raises(Failed, match="fills shard 0 of output 0 more than once") as raised:
            client.call("remap_arrays", plan=plan, array_handles=[array])
        assert raised.value.code == INVALID


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([(0, [(0, [7])])], "absent shards"),
        ([(0, [(0, [0, 0])])], "fills shard 0 of output 0 more than once"),
        ([(0, [(0, [0])]), (0, [(0, [0])])], "fills shard 0 of output 0 more than once"),
        ([(0, [(0, [-1])])], "absent shards"),
        ([(0, [(1, [0])])], "absent arrays"),
        ([(1, [(0, [0])])], "absent arrays"),
        ([(0, [])], "leaves shards out"),
        ([], "leaves shards out"),
    ],
)
def test_invalid_remap_plans_by_devices(client: RawClient, outputs: Any, message: str) -> None:
    array = client.put(FOUR, single(0))
    one = [spec([4], single(0))]
    plan = {
        "input_specs": one,
        "output_specs": one,
        "input_devices_for_output": by_devices(*outputs),
    }
    with pytest.raises(Failed, match=message) as raised:
        client.call("remap_arrays", plan=plan, array_handles=[array])
    assert raised.value.code == INVALID


def test_a_remap_changes_no_memory(client: RawClient) -> None:
    array = client.put(FOUR, pinned(0))
    mapping = {"from_start": [0], "from_end": [1], "from_step": [1]}
    mapping |= {"to_start": [0], "to_end": [1], "to_step": [1]}
    plan = {"input_specs": [spec([4], pinned(0))], "output_specs": [spec([4], single(0))]}
    with pytest.raises(Failed, match=r"'device'.* from shards of .*'pinned_host'") as raised:
        client.call("remap_arrays", plan={**plan, "mappings": [mapping]}, array_handles=[array])
    assert raised.value.code == INVALID


def test_a_remap_splits_an_array_over_several_slices(proxy: LocalProxy, client: RawClient) -> None:
    whole = client.put(EIGHT, split([0, 1, 4, 5]))
    outputs = [spec([4], split([0, 1])), spec([4], split([4, 5]))]
    plan = core_pb2.RemapPlanProto(
        input_specs=[spec([8], split([0, 1, 4, 5]))], output_specs=outputs
    )
    for number in range(2):
        plan.mappings.add(
            in_array=0,
            out_array=number,
            from_start=[2 * number],
            from_end=[2 * number + 2],
            from_step=[1],
            to_start=[0],
            to_end=[2],
            to_step=[1],
        )
    first, second = client.call(
        "remap_arrays", plan=plan, array_handles=[whole], copy_semantics=REUSE
    ).array_handles
    np.testing.assert_array_equal(client.fetch(first), EIGHT[:4])
    (part,) = client.call(
        "disassemble_into_single_device_arrays", array_handle=second
    ).array_handles[1:]
    client.ready(second)
    # Each lives with its own slice only.
    proxy.lose(0)
    np.testing.assert_array_equal(client.fetch(second), EIGHT[4:])
    with pytest.raises(Failed) as raised:
        client.fetch(first)
    assert raised.value.code == DATA_LOSS
    program = client.compile(DOUBLE.replace("4xf32", "2xf32"), [5])
    np.testing.assert_array_equal(client.fetch(client.execute(program, [part])[0]), [12, 14])
