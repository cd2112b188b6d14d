"""Resharding and bitcasts: results, shared memory, errors and refusals."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from harness.proxy.programs import sharded_double
from harness.proxy.raw import Failed, RawClient, replicated, single, spec, split
from shared_pathways_service.protocol.ifrt import core_pb2
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy
from tests.servers.proxy.session.arrays import (
    COPY,
    DATA_LOSS,
    DONATE,
    EIGHT,
    EXHAUSTED,
    FOUR,
    HALVES,
    INVALID,
    QUARTERS,
    REUSE,
    UNIMPLEMENTED,
    Kind,
    of_kind,
    pieces,
    pinned,
    reshard,
)


@pytest.mark.parametrize(
    ("have", "want", "shards"),
    [
        pytest.param(split([0, 1, 2, 3]), split([2, 3]), HALVES, id="joined"),
        pytest.param(split([0, 1]), split([0, 1, 2, 3]), QUARTERS, id="cut"),
        pytest.param(split([0, 1, 2, 3]), split([3, 2, 1, 0]), QUARTERS, id="turned round"),
        pytest.param(split([0, 1]), split([5, 6]), HALVES, id="to another slice"),
        pytest.param(single(7), split([1, 6]), HALVES, id="from one over two slices"),
        pytest.param(split([0, 4]), replicated([1, 2]), [[*HALVES[0], *HALVES[1]]] * 2, id="whole"),
        pytest.param(
            split(range(4), of=2), split([0, 1, 6, 7]), QUARTERS, id="from pieces that are twice"
        ),
        pytest.param(split([0, 1]), split([0, 1]), HALVES, id="as it was"),
        pytest.param(split([0, 5]), pinned(6), [[*HALVES[0], *HALVES[1]]], id="to a host's memory"),
    ],
)
def test_resharded(client: RawClient, have: Any, want: Any, shards: list[list[float]]) -> None:
    array = client.put(EIGHT, have)
    made = reshard(client, array, spec([8], want))
    assert pieces(client, made) == shards
    assert not client.call("is_array_deleted", array_handle=array).deleted


def test_resharded_arrays_are_arguments_like_others(client: RawClient) -> None:
    made = reshard(client, client.put(EIGHT, single(0)), spec([8], split([4, 5, 6, 7])))
    (doubled,) = client.execute(client.compile(sharded_double(4), [4, 5, 6, 7]), [made])
    np.testing.assert_array_equal(client.fetch(doubled), 2 * EIGHT)


def test_resharding_waits_for_its_array_and_runs_concurrently(client: RawClient) -> None:
    buffer, first = client.new_handle(), client.new_handle()
    client.make(first, buffer, [8], single(0))
    second = client.put(np.zeros(0, np.float32), single(1))
    answer = client.call(
        "reshard_arrays",
        array_handles=[first, second],
        array_specs=[spec([8], split([0, 1])), spec([0], replicated([4, 5]))],
        copy_semantics=DONATE,
        result_handles=[600, 601],
    )
    assert list(answer.array_handles) == [600, 601]
    assert client.call("is_array_deleted", array_handle=first).deleted
    client.store(buffer, EIGHT.tobytes())
    assert pieces(client, 600) == HALVES
    assert pieces(client, 601) == [[], []]


def test_memory_of_resharded_arrays_counts(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(memory_limit=64)
    client = connect(proxy.address)
    array = client.put(EIGHT, single(0))
    made = reshard(client, array, spec([8], replicated([0, 1])), DONATE)
    client.ready(made)
    held = proxy.engine.memory.held
    # What was donated goes with its handle.
    gc.collect()
    assert [held(0), held(1)] == [32, 32]
    big = client.put(np.zeros(16, np.float32), single(2))
    refused = reshard(client, big, spec([16], replicated([2, 3])))
    with pytest.raises(Failed, match=r"a reshard of an array needs 64 bytes on device 2") as raised:
        client.ready(refused)
    assert raised.value.code == EXHAUSTED
    assert held(3) == 0


def test_resharding_fails_with_what_it_reads_and_outlives_it(
    proxy: LocalProxy, client: RawClient
) -> None:
    array = client.put(EIGHT, split([0, 1]))
    made = reshard(client, array, spec([8], split([4, 5])))
    client.ready(made)
    proxy.lose(0)
    assert pieces(client, made) == HALVES
    late = reshard(client, array, spec([8], single(6)))
    with pytest.raises(Failed, match="slice 0") as raised:
        client.ready(late)
    assert raised.value.code == DATA_LOSS


@pytest.mark.parametrize(
    "wanted",
    [
        [],
        [spec([4], single(0)), spec([4], single(1))],
        [spec([8], single(0))],
        [of_kind(Kind.KIND_S32, [4], single(0))],
        [spec([4], split([0, 1, 2]))],
    ],
    ids=["no spec", "two specs", "shape", "type", "not to be split so"],
)
def test_unsupported_resharding_is_refused(client: RawClient, wanted: list[Any]) -> None:
    array = client.put(FOUR, single(0))
    with pytest.raises(Failed) as raised:
        client.call(
            "reshard_arrays", array_handles=[array], array_specs=wanted, result_handles=[600]
        )
    assert raised.value.code == INVALID
    with pytest.raises(Failed) as raised:
        client.ready(600)
    assert raised.value.code == INVALID
    np.testing.assert_array_equal(client.fetch(array), FOUR)


# ---- bitcasts


def bitcast(
    client: RawClient, array: int, wanted: core_pb2.ArraySpecProto, semantics: int = REUSE
) -> int:
    made: int
    (made,) = client.call(
        "bitcast_arrays", array_handles=[array], array_specs=[wanted], copy_semantics=semantics
    ).array_handles
    return made


def fetch_bytes(client: RawClient, array: int) -> bytes:
    return client.fetch(array).tobytes()


def test_bitcast_to_another_type_and_shape(client: RawClient) -> None:
    array = client.put(EIGHT, split([0, 1]))
    numbers = bitcast(client, array, of_kind(Kind.KIND_S32, [8], split([0, 1])))
    assert fetch_bytes(client, numbers) == EIGHT.tobytes()
    halves = bitcast(client, numbers, of_kind(Kind.KIND_U16, [16], split([0, 1])))
    assert fetch_bytes(client, halves) == EIGHT.tobytes()
    back = bitcast(client, halves, spec([8], split([0, 1])), DONATE)
    assert client.call("is_array_deleted", array_handle=halves).deleted
    (doubled,) = client.execute(client.compile(sharded_double(2), [0, 1]), [back])
    np.testing.assert_array_equal(client.fetch(doubled), 2 * EIGHT)
    np.testing.assert_array_equal(client.fetch(array), EIGHT)


def test_bitcast_to_another_rank(client: RawClient) -> None:
    array = client.put(EIGHT, single(3))
    made = bitcast(client, array, of_kind(Kind.KIND_U16, [2, 2, 4], single(3)))
    assert fetch_bytes(client, made) == EIGHT.tobytes()
    number = bitcast(client, client.put(FOUR[:1], single(3)), spec([], single(3)))
    assert client.fetch(number).tolist() == [0.0]


def test_bitcast_of_replicas_to_pieces(client: RawClient) -> None:
    array = client.put(FOUR, replicated([0, 1]))
    made = bitcast(client, array, spec([8], split([0, 1])))
    np.testing.assert_array_equal(client.fetch(made), [*FOUR, *FOUR])


def test_a_bitcast_shares_memory_and_fate(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(memory_limit=40)
    client = connect(proxy.address)
    array = client.put(EIGHT, single(0))
    made = bitcast(client, array, of_kind(Kind.KIND_S32, [8], single(0)), DONATE)
    client.ready(made)
    client.call("destruct_array", array_handle=[array])
    gc.collect()
    assert proxy.engine.memory.held(0) == 32
    proxy.lose(0)
    with pytest.raises(Failed) as raised:
        client.ready(made)
    assert raised.value.code == DATA_LOSS


def test_a_bitcast_inherits_an_error(client: RawClient) -> None:
    client.call(
        "make_error_arrays",
        error={"code": 10, "message": "no such luck"},
        array_specs=[spec([4], single(0))],
        array_handles=[5],
    )
    made = bitcast(client, 5, of_kind(Kind.KIND_S32, [4], single(0)))
    with pytest.raises(Failed, match="no such luck"):
        client.ready(made)


@pytest.mark.parametrize(
    ("wanted", "semantics", "code"),
    [
        (of_kind(Kind.KIND_S32, [4], single(1)), REUSE, INVALID),
        (spec([4], pinned(0)), REUSE, INVALID),
        (of_kind(Kind.KIND_S16, [4], single(0)), REUSE, INVALID),
        (spec([4], single(0)), COPY, INVALID),
        (of_kind(Kind.KIND_S4, [16], single(0)), REUSE, UNIMPLEMENTED),
    ],
    ids=["another device", "another memory", "another size", "a copy", "packed"],
)
def test_unsupported_bitcasts_are_refused(
    client: RawClient, wanted: Any, semantics: int, code: int
) -> None:
    array = client.put(FOUR, single(0))
    with pytest.raises(Failed) as raised:
        bitcast(client, array, wanted, semantics)
    assert raised.value.code == code
    np.testing.assert_array_equal(client.fetch(array), FOUR)


# ---- donation: XLA writes a program's result where its argument was


DONATING = """
module @donating {
  func.func public @main(%x: tensor<4096xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4096xf32> {
    %n = stablehlo.add %x, %x : tensor<4096xf32>
    return %n : tensor<4096xf32>
  }
}
"""
MANY = np.arange(4096, dtype=np.float32)


@pytest.mark.parametrize("how", ["as it was", "of another slice", "bitcast twice"])
@pytest.mark.parametrize("taken", ["the source", "the result"])
def test_donating_one_of_two_sharing_arrays_keeps_the_other(
    client: RawClient, how: str, taken: str
) -> None:
    array = client.put(MANY, single(0))
    if how == "bitcast twice":
        made = bitcast(client, array, of_kind(Kind.KIND_S32, [4096], single(0)))
        made = bitcast(client, made, spec([4096], single(0)))
    else:
        to = 4 if how == "of another slice" else 0
        made = reshard(client, array, spec([4096], single(to)), REUSE)
    devices = {"the source": 0, "the result": 4 if how == "of another slice" else 0}
    program = client.compile(DONATING, [devices[taken]])
    takes, keeps = (array, made) if taken == "the source" else (made, array)
    for round_ in range(1, 3):
        (takes,) = client.execute(program, [takes])
        np.testing.assert_array_equal(client.fetch(takes), 2**round_ * MANY)
    np.testing.assert_array_equal(client.fetch(keeps), MANY)
