"""Programs that are given what they cannot take; over several devices XLA ends the process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.processes import ServerProcess
from harness.proxy.programs import sharded_double
from harness.proxy.raw import Failed, RawClient, replicated, single, split
from shared_pathways_service.protocol.ifrt import core_pb2
from tests.servers.proxy.conftest import KIND, MODULE, MakeClient

EIGHT = np.arange(8, dtype=np.float32)
INVALID = 3
DEVICES = range(4)
DONATED = ", jax.buffer_donor = true"
SPLIT = 'mhlo.sharding = "{devices=[4]<=[4]}"'
#: Two arguments, both donated.
TWO = f"""
module @two attributes {{mhlo.num_partitions = 4 : i32}} {{
  func.func public @main(%x: tensor<8xf32> {{{SPLIT}{DONATED}}},
      %y: tensor<8xf32> {{{SPLIT}{DONATED}}})
      -> (tensor<8xf32> {{{SPLIT}}}, tensor<8xf32> {{{SPLIT}}}) {{
    %n = stablehlo.add %x, %x : tensor<8xf32>
    %m = stablehlo.add %y, %y : tensor<8xf32>
    return %n, %m : tensor<8xf32>, tensor<8xf32>
  }}
}}
"""
#: What it is offered is twice as large as its result.
NO_USE = f"""
module @no_use attributes {{mhlo.num_partitions = 4 : i32}} {{
  func.func public @main(%x: tensor<8xf32> {{{SPLIT}{DONATED}}},
      %y: tensor<16xf32> {{{SPLIT}{DONATED}}})
      -> (tensor<8xf32> {{{SPLIT}}}) {{
    %s = stablehlo.slice %y [0:16:2] : (tensor<16xf32>) -> tensor<8xf32>
    %n = stablehlo.add %x, %s : tensor<8xf32>
    return %n : tensor<8xf32>
  }}
}}
"""
TOKENS = """
module @tokens {
  func.func public @main(%x: tensor<4xf32>) -> !stablehlo.token {
    %t = stablehlo.create_token : !stablehlo.token
    return %t : !stablehlo.token
  }
}
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A proxy in a process of its own: what is not refused would end this one."""
    root = Path(tempfile.mkdtemp(prefix="sps"))
    flags = [f"--server_socket={root / 's'}", f"--virtual_slices={KIND},{KIND}"]
    with ServerProcess(MODULE, flags) as proxy:
        assert proxy.ready is not None, "\n".join(proxy.lines)
        yield f"unix:{root / 's'}"
        assert proxy.stop() == 0
    shutil.rmtree(root)


@pytest.fixture
def session(address: str, connect: MakeClient) -> RawClient:
    return connect(address)


def in_memory(kind: str, sharding: core_pb2.ShardingProto) -> core_pb2.ShardingProto:
    """The same sharding in another memory."""
    message = core_pb2.HloShardingProto.FromString(sharding.serialized_sharding.data)
    message.memory_kind = kind
    changed = core_pb2.ShardingProto()
    changed.serialized_sharding.type_name = sharding.serialized_sharding.type_name
    changed.serialized_sharding.data = message.SerializeToString()
    return changed


def refused(client: RawClient, program: int, arguments: Sequence[int], results: int = 1) -> str:
    """Runs a program that must fail, at once or later; returns why."""
    with pytest.raises(Failed) as raised:
        client.ready(*client.execute(program, arguments, results))
    assert raised.value.code == INVALID
    return raised.value.message


def still_serves(client: RawClient) -> None:
    (result,) = client.execute(
        client.compile(sharded_double(4), DEVICES), [client.put(EIGHT, split(DEVICES))]
    )
    np.testing.assert_array_equal(client.fetch(result), 2 * EIGHT)


def test_arrays_of_another_shape_type_or_place(session: RawClient) -> None:
    program = session.compile(sharded_double(4), DEVICES)
    right = session.put(EIGHT, split(DEVICES))
    whole = "takes float32[2] on each device as argument 0, not float32[8]"
    for array, words in (
        (session.put(np.zeros(16, np.float32), split(DEVICES)), "not float32[4]"),
        (session.put(EIGHT, replicated(DEVICES)), whole),
        (session.put(EIGHT, split([3, 2, 1, 0])), "an argument lies on (3, 2, 1, 0)"),
        (session.put(EIGHT, single(0)), "an argument lies on (0,)"),
    ):
        assert words in refused(session, program, [array])
        # What was found right before is still known to be.
        (result,) = session.execute(program, [right])
        np.testing.assert_array_equal(session.fetch(result), 2 * EIGHT)
    with pytest.raises(Failed, match="cannot be split"):
        session.put(np.zeros((8, 1), np.float32), split(DEVICES))


def test_an_array_of_another_type(session: RawClient) -> None:
    program = session.compile(sharded_double(4), DEVICES)
    buffer, array = session.new_handle(), session.new_handle()
    session.store(buffer, bytes(8))
    session.call(
        "make_array_from_host_buffer",
        dtype=core_pb2.DTypeProto(kind=core_pb2.DTypeProto.KIND_S8),
        shape=core_pb2.ShapeProto(dims=[8]),
        sharding=split(DEVICES),
        host_buffer_handle=buffer,
        array_handle=array,
    )
    assert "not int8[2]" in refused(session, program, [array])
    still_serves(session)


def test_arrays_in_another_memory(session: RawClient) -> None:
    program = session.compile(sharded_double(4), DEVICES)
    for kind in ("pinned_host", "unpinned_host"):
        array = session.put(EIGHT, in_memory(kind, split(DEVICES)))
        (result,) = session.execute(program, [array])
        np.testing.assert_array_equal(session.fetch(result), 2 * EIGHT)
    with pytest.raises(Failed, match="no memory of kind 'disk'"):
        session.put(EIGHT, in_memory("disk", split(DEVICES)))
    with pytest.raises(Failed, match="no memory of kind 'disk'"):
        session.call("copy_arrays", array_handles=[array], memory_kind="disk")
    still_serves(session)


def test_an_array_that_is_donated_twice(session: RawClient) -> None:
    program = session.compile(TWO, DEVICES)
    array = session.put(EIGHT, split(DEVICES))
    assert "is also another argument" in refused(session, program, [array, array], 2)
    # Refused as a whole: nothing was taken.
    np.testing.assert_array_equal(session.fetch(array), EIGHT)
    still_serves(session)


def views(client: RawClient) -> list[int]:
    """Two arrays of the same pieces."""
    array = client.put(EIGHT, split(DEVICES))
    pieces = [client.new_handle() for _ in DEVICES]
    client.call("disassemble_into_single_device_arrays", array_handle=array, result_handles=pieces)
    other = client.new_handle()
    client.call(
        "assemble_array_from_single_device_arrays",
        shape=core_pb2.ShapeProto(dims=[8]),
        sharding=split(DEVICES),
        single_device_array_handles=pieces,
        result_handle=other,
    )
    return [array, other]


def test_views_of_donated_arrays(session: RawClient) -> None:
    double = session.compile(sharded_double(4), DEVICES)
    take = session.compile(sharded_double(4, DONATED), DEVICES)
    two = session.compile(TWO, DEVICES)
    for number in (0, 1):
        arrays = views(session)
        (taken,) = session.execute(take, [arrays[number]])
        np.testing.assert_array_equal(session.fetch(taken), 2 * EIGHT)
        assert "deleted or donated" in refused(session, double, [arrays[1 - number]])
    assert "shares its memory" in refused(session, two, views(session), 2)
    # Each by itself is whole.
    for number in (0, 1):
        other = session.put(EIGHT + 1, split(DEVICES))
        results = session.execute(two, [views(session)[number], other], 2)
        np.testing.assert_array_equal(session.fetch(results[0]), 2 * EIGHT)
        np.testing.assert_array_equal(session.fetch(results[1]), 2 * EIGHT + 2)
    still_serves(session)


def test_what_no_result_fits_into_is_not_taken(session: RawClient) -> None:
    program = session.compile(NO_USE, DEVICES)
    metadata = session.call("loaded_executable_metadata", loaded_executable_handle=program)
    assert list(metadata.donated_input_indices.donated_input_indices) == [0]
    fits = session.put(EIGHT, split(DEVICES))
    sixteen = session.put(np.ones(16, np.float32), split(DEVICES))
    (result,) = session.execute(program, [fits, sixteen])
    np.testing.assert_array_equal(session.fetch(result), EIGHT + 1)
    np.testing.assert_array_equal(session.fetch(sixteen), np.ones(16))
    with pytest.raises(Failed, match="deleted or donated"):
        session.fetch(fits)


def test_a_token_is_no_array_of_numbers(session: RawClient) -> None:
    program = session.compile(TOKENS, [0])
    metadata = session.call("loaded_executable_metadata", loaded_executable_handle=program)
    # From jaxlib 0.12 on it has a layout.
    has_layout = len(metadata.output_layouts_list.layouts) == 1
    assert has_layout or "token" in metadata.output_layouts_error.message
    (token,) = session.execute(program, [session.put(EIGHT[:4], single(0))])
    session.ready(token)
    with pytest.raises(Failed, match="token"):
        session.fetch(token)
    for device in (1, 5):
        with pytest.raises(Failed, match="a token has no data to copy"):
            session.call("copy_arrays", array_handles=[token], device_ids=[device])
    still_serves(session)
