"""Shardings by named axes of a mesh: turned into tiles as XLA itself does, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from jaxlib import xla_client

from harness.proxy.raw import RawClient
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.protocol.ifrt.xla_pb2 import (
    AxisRefProto,
    MeshProto,
    NamedShardingProto,
    OpSharding,
)
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla.named_shardings import as_tiles
from shared_pathways_service.servers.xla.op_shardings import checked_op_sharding

Axis = int | tuple[int, int, int]
SUM, MAX = NamedShardingProto.SUM, NamedShardingProto.MAX
MANUAL, REPLICATED, UNREDUCED = OpSharding.MANUAL, OpSharding.REPLICATED, OpSharding.UNREDUCED


def axis(reference: Axis) -> AxisRefProto:
    """A whole axis by its index, or a part of one: index, size before it, size."""
    if isinstance(reference, int):
        return AxisRefProto(mesh_axis_index=reference)
    index, pre_size, size = reference
    return AxisRefProto(
        mesh_axis_index=index,
        sub_axis_info=AxisRefProto.SubAxis(pre_size=pre_size, size=size),
    )


def named(
    sizes: Sequence[int],
    dimensions: Sequence[Sequence[Axis]] = (),
    *,
    device_ids: Sequence[int] = (),
    iota: tuple[Sequence[int], Sequence[int]] | None = None,
    replicated: Sequence[Axis] = (),
    unreduced: Sequence[Axis] = (),
    manual: Sequence[Axis] = (),
    reduction: NamedShardingProto.ReductionOpProto.ValueType = SUM,
) -> OpSharding:
    mesh = MeshProto(
        axes=[MeshProto.MeshAxis(name=f"a{i}", size=size) for i, size in enumerate(sizes)],
        device_ids=device_ids,
    )
    if iota is not None:
        mesh.iota_transform.CopyFrom(
            MeshProto.IotaTransform(reshape_dims=iota[0], transpose_perm=iota[1])
        )
    return OpSharding(
        named_sharding=NamedShardingProto(
            mesh=mesh,
            dim_shardings=[
                NamedShardingProto.DimensionSharding(axes=map(axis, axes)) for axes in dimensions
            ],
            replicated_axes=map(axis, replicated),
            unreduced_axes=map(axis, unreduced),
            manual_axes=map(axis, manual),
            reduction_op=reduction,
        )
    )


@pytest.mark.parametrize(
    ("sharding", "tiles", "devices", "groups"),
    [
        pytest.param(named([4], [[0]]), [4], [0, 1, 2, 3], [], id="all of it"),
        pytest.param(named([2, 2], [[1], [0]]), [2, 2], [0, 2, 1, 3], [], id="turned"),
        pytest.param(named([2, 2], [[1, 0]]), [4], [0, 2, 1, 3], [], id="both on one dimension"),
        pytest.param(
            named([2, 3], [[0], []]), [2, 1, 3], [0, 1, 2, 3, 4, 5], [REPLICATED], id="the rest"
        ),
        pytest.param(
            named([2, 3], [[1]]), [3, 2], [0, 3, 1, 4, 2, 5], [REPLICATED], id="the rest before"
        ),
        pytest.param(
            named([4], [[(0, 2, 2)]]), [2, 2], [0, 2, 1, 3], [REPLICATED], id="a part of an axis"
        ),
        pytest.param(
            named([8], [[(0, 1, 2)], [(0, 4, 2)]]),
            [2, 2, 2],
            [0, 2, 1, 3, 4, 6, 5, 7],
            [REPLICATED],
            id="the ends of an axis",
        ),
        pytest.param(
            named([2, 2], [[0]], device_ids=[3, 2, 1, 0]),
            [2, 2],
            [3, 2, 1, 0],
            [REPLICATED],
            id="devices in another order",
        ),
        pytest.param(
            named([2, 4], [[0], [1]], iota=([4, 2], [1, 0])),
            [2, 4],
            [0, 2, 4, 6, 1, 3, 5, 7],
            [],
            id="devices by an iota",
        ),
        pytest.param(
            named([2, 2], [[0]], unreduced=[1]), [2, 2], [0, 1, 2, 3], [UNREDUCED], id="unreduced"
        ),
        pytest.param(
            named([2, 2, 2], [[2]], manual=[0]),
            [2, 2, 2],
            [0, 2, 4, 6, 1, 3, 5, 7],
            [MANUAL, REPLICATED],
            id="manual",
        ),
        pytest.param(named([1, 2], [[0, 1]]), [2], [0, 1], [], id="an axis of size one"),
    ],
)
def test_tiles(
    sharding: OpSharding, tiles: list[int], devices: list[int], groups: list[int]
) -> None:
    made = as_tiles(sharding)
    assert not made.HasField("named_sharding")
    assert made.type == OpSharding.OTHER
    assert list(made.tile_assignment_dimensions) == tiles
    assert list(made.tile_assignment_devices) == devices
    assert list(made.last_tile_dims) == groups
    checked_op_sharding(sharding.SerializeToString(), len(devices))


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        (named([]), OpSharding(type=REPLICATED)),
        (named([2, 2], [[], []]), OpSharding(type=REPLICATED)),
        (named([2, 2], replicated=[0, 1]), OpSharding(type=REPLICATED)),
        (named([1], [[0]]), OpSharding(type=REPLICATED)),
        (
            named([], device_ids=[5]),
            OpSharding(type=OpSharding.MAXIMAL, tile_assignment_devices=[5]),
        ),
    ],
)
def test_without_tiles(sharding: OpSharding, expected: OpSharding) -> None:
    assert as_tiles(sharding) == expected


def test_what_has_no_names_stays_as_it_is() -> None:
    sharding = OpSharding(type=OpSharding.MANUAL)
    assert as_tiles(sharding) is sharding


def ordered(axes: list[Axis]) -> list[Axis]:
    return sorted(axes, key=lambda a: (a, 0) if isinstance(a, int) else a[:2])


def joined(axes: list[Axis]) -> list[Axis]:
    """The same axes, with two halves of one in a row as the whole."""
    found: list[Axis] = []
    for part in axes:
        last = found[-1] if found else 0
        if isinstance(last, tuple) and isinstance(part, tuple) and part[0] == last[0]:
            found[-1] = part[0] if last[1] == 1 else last
            found += [] if last[1] == 1 else [part]
        else:
            found.append(part)
    return found


@st.composite
def shardings(draw: st.DrawFn) -> OpSharding:
    """Meshes of up to four axes, whose parts go to dimensions or groups, or to nothing."""
    sizes = draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=4))
    parts: list[Axis] = []
    for index, size in enumerate(sizes):
        if size in {4, 6} and draw(st.booleans()):
            parts += [(index, 1, 2), (index, 2, size // 2)]
        else:
            parts.append(index)
    places: list[list[Axis]] = [[] for _ in range(5)]
    for part in draw(st.permutations(parts)):
        places[draw(st.integers(0, 4))].append(part)
    # XLA ends the process at groups out of order, at neighbours that it would write as one, and at
    # device_ids in order.
    places = [joined(places[0]), joined(places[1]), *(joined(ordered(p)) for p in places[2:])]
    first, second, manual, unreduced, _ = places
    devices = int(np.prod(sizes))
    order = draw(st.permutations(range(devices)))
    return named(
        sizes,
        [first, second],
        device_ids=() if order == sorted(order) else order,
        manual=manual,
        unreduced=unreduced,
    )


def by_device(tiles: Any) -> dict[int, tuple[int, ...]]:
    """Which tile of the two dimensions each device has."""
    assignment = np.array(tiles.tile_assignment_devices()).reshape(
        tiles.tile_assignment_dimensions()
    )
    # XLA leaves dimensions out where none is divided.
    kept = assignment.ndim - len(tiles.subgroup_types())
    return {
        int(device): index[:kept] if kept else (0, 0)
        for index, device in np.ndenumerate(assignment)
    }


@given(sharding=shardings())
def test_as_xla_does(sharding: OpSharding) -> None:
    convert = getattr(xla_client.HloSharding, "v3_to_v2_sharding", None)
    if convert is None:  # jaxlib 0.9: that XLA reads the tiles is all that can be seen
        read(as_tiles(sharding))
        return
    theirs, ours = convert(read(sharding)), read(as_tiles(sharding))
    assert theirs.is_replicated() == ours.is_replicated()
    assert theirs.is_manual() == ours.is_manual()
    if not ours.tile_assignment_dimensions() or not theirs.tile_assignment_dimensions():
        return
    assert by_device(theirs) == by_device(ours)
    assert set(theirs.subgroup_types()) == set(ours.subgroup_types())


def read(sharding: OpSharding) -> Any:
    message = xla_client.OpSharding()
    message.ParseFromString(sharding.SerializeToString())
    return xla_client.HloSharding.from_proto(message)


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (named([2], [[1]]), "axis 1 of a mesh with 1 axes"),
        (named([2], [[-1]]), "axis -1 of a mesh"),
        (named([2], [[0], [0]]), "an axis that is used twice"),
        (named([2], [[0]], manual=[0]), "an axis that is used twice"),
        (named([2], [[0]], replicated=[0]), "both replicated and used"),
        (named([4], [[(0, 1, 3)]]), r"a part \(1\)3 of an axis of size 4"),
        (named([4], [[(0, 0, 2)]]), r"a part \(0\)2"),
        (named([4], [[(0, 2, 4)]]), r"a part \(2\)4"),
        (named([12], [[(0, 1, 2)], [(0, 3, 2)]]), "overlap, at 2 and 3"),
        (named([12], [[(0, 1, 6)], [(0, 2, 6)]]), "an axis that is used twice"),
        (named([0], [[0]]), "an axis of size 0"),
        (named([-2, -2], [[0]]), "an axis of size -2"),
        (named([1 << 62, 4], [[0]]), "each must be from 1 up"),
        (named([2] * 17, [[0]]), "at most 65536"),
        (named([2], [[0]], device_ids=[0]), "1 device_ids for axes of 2 devices"),
        (named([2], [[0]], iota=([3], [0])), "an iota_transform of other than its 2 devices"),
        (named([2], [[0]], iota=([2], [1])), "not a permutation"),
        (named([2], [[0]], iota=([1] * 99 + [2], range(100))), "not a permutation"),
        (named([2], [[0]], iota=([2], [0]), device_ids=[0, 1]), "both device_ids and"),
        (named([], device_ids=[0, 1]), "a mesh of 2 devices without axes"),
        (named([], [[0]]), "axes that its mesh does not have"),
    ],
)
def test_what_is_no_sharding_is_refused(sharding: OpSharding, message: str) -> None:
    with pytest.raises(StatusError, match=message) as raised:
        as_tiles(sharding)
    assert raised.value.code is Code.INVALID_ARGUMENT


def test_devices_are_those_of_the_list() -> None:
    with pytest.raises(StatusError, match="their product the number of devices, 2"):
        checked_op_sharding(named([4], [[0]]).SerializeToString(), 2)
    twice = named([2], [[0]], device_ids=[1, 1])
    with pytest.raises(StatusError, match="each once"):
        checked_op_sharding(twice.SerializeToString(), 2)


def test_a_reduction_that_tiles_cannot_express_is_refused() -> None:
    with pytest.raises(StatusError, match="still to be reduced by MAX") as raised:
        as_tiles(named([2], unreduced=[0], reduction=MAX))
    assert raised.value.code is Code.UNIMPLEMENTED


def test_an_array_by_named_axes(client: RawClient) -> None:
    data = np.arange(8, dtype=np.float32)
    wanted = core_pb2.HloShardingProto(xla_op_sharding=named([2, 2], [[1, 0]]).SerializeToString())
    wanted.devices.device_ids.extend([0, 1, 2, 3])
    sharding = core_pb2.ShardingProto()
    sharding.serialized_sharding.type_name = "xla::ifrt::HloSharding"
    sharding.serialized_sharding.data = wanted.SerializeToString()
    array = client.put(data, sharding)
    parts = client.call("disassemble_into_single_device_arrays", array_handle=array).array_handles
    assert [client.fetch(part).tolist() for part in parts] == [[0, 1], [4, 5], [2, 3], [6, 7]]
