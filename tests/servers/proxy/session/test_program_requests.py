"""Requests for programs: donation, descriptions, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import Failed, RawClient, single, split
from shared_pathways_service.protocol.ifrt import core_pb2
from tests.servers.proxy.session.arrays import EIGHT, FOUR, INVALID, UNIMPLEMENTED

CUSTOM = "xla::ifrt::CustomCallProgram"


def test_donated_arguments_are_deleted_after_pending_reads(client: RawClient) -> None:
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
def test_invalid_programs_are_refused(client: RawClient, text: str) -> None:
    with pytest.raises(Failed) as raised:
        client.compile(text, [0])
    assert raised.value.code in {INVALID, 13}
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_programs_of_another_kind_are_refused_by_its_name(client: RawClient) -> None:
    # What pathwaysutils sends for Google's own server, say.
    with pytest.raises(Failed, match=r"xla::ifrt::PluginProgram.* only those of XLA") as raised:
        client.call("compile", program={"type_name": "xla::ifrt::PluginProgram", "data": b"{}"})
    assert raised.value.code == UNIMPLEMENTED
    custom = core_pb2.CustomCallProgramProto(type="other", name="double").SerializeToString()
    for data in (b"", custom):
        with pytest.raises(Failed, match=r"xla::ifrt::CustomCallProgram.* only those of XLA"):
            client.call("compile", program={"type_name": CUSTOM, "data": data})
    with pytest.raises(Failed, match="host callbacks") as raised:
        client.call("compile", host_callbacks=[b""])
    assert raised.value.code == UNIMPLEMENTED


@pytest.mark.parametrize(
    "name", ["double", "double_output_specs_and_push_result"], ids=["call", "first call"]
)
def test_colocated_python_is_refused_with_the_name_of_the_function(
    client: RawClient, name: str
) -> None:
    custom = core_pb2.CustomCallProgramProto(type="jax_colocated_python_v0.0.1", name=name)
    program = {"type_name": CUSTOM, "data": custom.SerializeToString()}
    with pytest.raises(Failed, match=r"colocated_python function 'double': .*process") as raised:
        client.call("compile", program=program)
    assert raised.value.code == UNIMPLEMENTED


def test_a_custom_program_that_is_no_message_is_refused(client: RawClient) -> None:
    with pytest.raises(Failed) as raised:
        client.call("compile", program={"type_name": CUSTOM, "data": b"\xff"})
    assert raised.value.code == INVALID
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_mismatched_arguments_are_refused(client: RawClient) -> None:
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
