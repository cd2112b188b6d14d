"""Calls at compile time on the wire: what programs and answers must be, and what ends a wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE
from harness.proxy.raw import Failed, Pending, RawClient, single, split
from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.status_errors import Code
from shared_pathways_service.servers.proxy.engine import compilations
from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache
from tests.servers.proxy.callbacks.raw_callbacks import NONCE, RawCallbacks
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy

EIGHT = np.arange(8, dtype=np.float32)
ADDRESS = "\\10\\27\\00\\00\\00\\00\\00\\00\\10\\27\\00\\00\\00\\00\\00\\00"
#: Of an xla.OpSharding: whole on each device, and split over two.
WHOLE = xla_pb2.OpSharding(type=xla_pb2.OpSharding.REPLICATED).SerializeToString()
HALVES = xla_pb2.OpSharding(
    type=xla_pb2.OpSharding.OTHER,
    tile_assignment_dimensions=[2],
    tile_assignment_devices=[0, 1],
).SerializeToString()


def asking(
    name: str = "CustomSPMDPartitioning",
    how: str = 'api_version = 2 : i32, backend_config = "sps 0"',
    *,
    mark: str = ', sps.callbacks = "7 1"',
    devices: int = 2,
    results: str = "tensor<8xf32>",
) -> str:
    """A program of eight elements, split over the devices, that asks how to do one call."""
    sharding = f'{{mhlo.sharding = "{{devices=[{devices}]<=[{devices}]}}"}}'
    return f"""
module @asking attributes {{mhlo.num_partitions = {devices} : i32{mark}}} {{
  func.func public @main(%x: tensor<8xf32> {sharding}) -> tensor<8xf32> {{
    %y = stablehlo.custom_call @{name}(%x) {{{how}}} : (tensor<8xf32>) -> {results}
    %z = stablehlo.add %x, %x : tensor<8xf32>
    %sum = stablehlo.add %z, {"%y" if results == "tensor<8xf32>" else "%x"} : tensor<8xf32>
    return %sum : tensor<8xf32>
  }}
}}
"""


INSPECTING = asking("InspectSharding", 'has_side_effect = true, backend_config = "sps 0"')


@pytest.fixture
def session(proxy: LocalProxy, connect: MakeClient) -> RawClient:
    return connect(proxy.address, initialization_data={"sps_callbacks": NONCE})


@pytest.fixture
def stream(session: RawClient) -> Iterator[RawCallbacks]:
    with RawCallbacks(session) as callbacks:
        yield callbacks


def asked(stream: RawCallbacks) -> tuple[int, pb.CompileCall]:
    """Returns the number of the next call, and what it asks."""
    call = stream.invocation()
    (argument,) = call.arguments
    assert (call.program, argument.dtype, list(argument.shape)) == (7, "uint8", [len(call.data)])
    return call.call, pb.CompileCall.FromString(call.data)


def answer(stream: RawCallbacks, call: int, answered: pb.CompileAnswer) -> None:
    stream.answer(call, np.frombuffer(answered.SerializeToString(), np.uint8))


def partitioned(program: str, operand: bytes = HALVES, result: bytes = HALVES) -> pb.CompileAnswer:
    return pb.CompileAnswer(
        program=program.encode(), operand_shardings=[operand], result_shardings=[result]
    )


def answer_all(stream: RawCallbacks, partition: pb.CompileAnswer) -> list[pb.CompileCall]:
    """Answers GSPMD's questions until it is told how to partition; returns them."""
    seen = []
    while True:
        number, call = asked(stream)
        seen.append(call)
        if call.kind == pb.CompileCall.PARTITION:
            answer(stream, number, partition)
            return seen
        answer(stream, number, pb.CompileAnswer(result_shardings=[HALVES]))


def fails(pending: Pending, code: Code, *words: str) -> None:
    with pytest.raises(Failed) as raised:
        pending.result()
    assert raised.value.code == code, raised.value.message
    for word in words:
        assert word in raised.value.message


def test_a_program_is_partitioned_as_its_client_says(
    session: RawClient, stream: RawCallbacks
) -> None:
    compiling = session.begin_compile(asking(), [0, 1])
    seen = answer_all(stream, partitioned(DOUBLE))
    program = compiling.result().loaded_executable_handle
    (result,) = session.execute(program, [session.put(EIGHT, split([0, 1]))])
    np.testing.assert_array_equal(session.fetch(result), EIGHT * 4)
    asked_last = seen[-1]
    (operand,), (value,) = asked_last.operands, asked_last.results
    assert [(v.type.dtype, list(v.type.shape)) for v in (operand, value)] == [("float32", [8])] * 2
    told = xla_pb2.OpSharding.FromString(operand.sharding)
    assert list(told.tile_assignment_dimensions) == [2]


def test_the_sharding_of_a_value_is_sent(session: RawClient, stream: RawCallbacks) -> None:
    compiling = session.begin_compile(INSPECTING, [0, 1])
    number, call = asked(stream)
    assert call.kind == pb.CompileCall.INSPECT
    sharding = xla_pb2.OpSharding.FromString(call.operands[0].sharding)
    assert list(sharding.tile_assignment_dimensions) == [2]
    answer(stream, number, pb.CompileAnswer())
    program = compiling.result().loaded_executable_handle
    (result,) = session.execute(program, [session.put(EIGHT, split([0, 1]))])
    np.testing.assert_array_equal(session.fetch(result), EIGHT * 3)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (asking(how=f'api_version = 2 : i32, backend_config = "{ADDRESS}"'), ["not 'sps' and"]),
        (asking(how="api_version = 2 : i32"), ["not 'sps' and"]),
        (asking(how='api_version = 2 : i32, backend_config = "sps 1"'), ["index is 1", "has 1"]),
        (asking(how='api_version = 1 : i32, backend_config = "sps 0"'), ["api_version is 1"]),
        (asking("InspectSharding"), ["api_version is 2"]),
        (
            asking("InspectSharding", f'has_side_effect = true, backend_config = "{ADDRESS}"'),
            ["not 'sps' and"],
        ),
        (
            asking("InspectSharding", 'backend_config = "sps 0"', results="tensor<4xf32>"),
            ["one result of its type"],
        ),
        (
            asking(
                how='api_version = 2 : i32, backend_config = "sps 0", '
                'mhlo.sharding = "{maximal device=7}"'
            ),
            ["the attribute mhlo.sharding"],
        ),
        (asking(results="tuple<tensor<8xf32>>"), ["tensors of known shape"]),
    ],
)
def test_a_call_that_jax_does_not_write_is_refused(
    session: RawClient, stream: RawCallbacks, program: str, words: list[str]
) -> None:
    del stream
    fails(session.begin_compile(program, [0, 1]), Code.INVALID_ARGUMENT, *words)


def test_on_one_device_nothing_is_asked(session: RawClient, stream: RawCallbacks) -> None:
    del stream
    program = asking(devices=1)
    fails(session.begin_compile(program, [0]), Code.INVALID_ARGUMENT, "one device")


def test_without_a_mark_the_call_is_refused_by_name(session: RawClient) -> None:
    for program in (asking(mark=""), INSPECTING.replace(', sps.callbacks = "7 1"', "")):
        fails(session.begin_compile(program, [0, 1]), Code.UNIMPLEMENTED, "Instead: ")


def test_without_a_stream_the_program_fails(session: RawClient) -> None:
    fails(session.begin_compile(INSPECTING, [0, 1]), Code.UNAVAILABLE, "is not open")


def test_an_error_of_the_function_is_the_compilations(
    session: RawClient, stream: RawCallbacks
) -> None:
    prefixes = {INSPECTING: "Error calling inspect_sharding: ", asking(): "custom_partitioner: "}
    for program, prefix in prefixes.items():
        compiling = session.begin_compile(program, [0, 1])
        stream.fail(asked(stream)[0], "no such thing")
        fails(compiling, Code.INTERNAL, f"{prefix}ValueError: no such thing")


WRONG = {
    "nothing": (pb.CompileAnswer(), "0 shardings for 1 operands"),
    "rank": (
        partitioned(
            DOUBLE,
            xla_pb2.OpSharding(
                type=xla_pb2.OpSharding.OTHER,
                tile_assignment_dimensions=[2, 1],
                tile_assignment_devices=[0, 1],
            ).SerializeToString(),
        ),
        "a sharding of 2 dimensions for an array of 1",
    ),
    "devices": (
        partitioned(
            DOUBLE,
            HALVES,
            xla_pb2.OpSharding(
                type=xla_pb2.OpSharding.OTHER,
                tile_assignment_dimensions=[4],
                tile_assignment_devices=[0, 1, 2, 3],
            ).SerializeToString(),
        ),
        "must be from 1 up",
    ),
    "one device": (
        partitioned(
            DOUBLE,
            xla_pb2.OpSharding(
                type=xla_pb2.OpSharding.MAXIMAL, tile_assignment_devices=[1]
            ).SerializeToString(),
        ),
        "a sharding of type MAXIMAL",
    ),
    "argument": (partitioned(DOUBLE, WHOLE), "takes float32[4] on each device, not float32[8]"),
    "result": (partitioned(DOUBLE, HALVES, WHOLE), "returns float32[4] on each device, not"),
    "element": (partitioned(DOUBLE.replace("f32", "i32")), "takes int32[4] on each device, not"),
    "no program": (partitioned("nothing"), "parse"),
    "no main": (partitioned("module {}"), "no main function"),
    "refused": (
        partitioned(
            DOUBLE.replace(
                "stablehlo.add %x, %x :",
                'stablehlo.custom_call @sps.CustomSPMDPartitioning(%x) {backend_config = "1"} : '
                "(tensor<4xf32>) ->",
            )
        ),
        "does not run custom call 'sps.CustomSPMDPartitioning'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_not_given_to_xla(
    session: RawClient, stream: RawCallbacks, case: str
) -> None:
    wrong, words = WRONG[case]
    compiling = session.begin_compile(asking(), [0, 1])
    answer_all(stream, wrong)
    with pytest.raises(Failed, match=words.replace("[", r"\[")):
        compiling.result()
    assert session.compile(DOUBLE, [0])


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x7f"])
def test_bytes_that_are_no_answer(session: RawClient, stream: RawCallbacks, data: bytes) -> None:
    compiling = session.begin_compile(INSPECTING, [0, 1])
    stream.answer(asked(stream)[0], np.frombuffer(data, np.uint8))
    fails(compiling, Code.INVALID_ARGUMENT, "not a CompileAnswer")
    for shape in ((), (2, 2), (1 << 40,)):
        compiling = session.begin_compile(INSPECTING, [0, 1])
        stream.answer(asked(stream)[0], np.broadcast_to(np.uint8(0), shape), data=b"")
        fails(compiling, Code.INVALID_ARGUMENT, "a callback failed: its client answered")


def test_others_are_compiled_while_a_client_is_asked(
    proxy: LocalProxy, connect: MakeClient, session: RawClient, stream: RawCallbacks
) -> None:
    """Those of other sessions, and those that the function itself compiles."""
    other = connect(proxy.address)
    compiling = session.begin_compile(INSPECTING, [0, 1])
    number, _ = asked(stream)
    for client in (other, session):
        program = client.compile(DOUBLE, [0])
        (result,) = client.execute(program, [client.put(np.arange(4), single(0))])
        assert client.fetch(result).tolist() == [0, 2, 4, 6]
    nested = session.begin_compile(INSPECTING, [2, 3])
    inner, _ = asked(stream)
    answer(stream, inner, pb.CompileAnswer())
    nested.result()
    answer(stream, number, pb.CompileAnswer())
    compiling.result()


def test_too_many_that_wait_are_refused(
    monkeypatch: pytest.MonkeyPatch, session: RawClient, stream: RawCallbacks
) -> None:
    monkeypatch.setattr(compilations, "_MOST_ASIDE", 1)
    first = session.begin_compile(INSPECTING, [0, 1])
    number, _ = asked(stream)
    fails(session.begin_compile(INSPECTING, [0, 1]), Code.RESOURCE_EXHAUSTED, "which is the limit")
    asked(stream)
    answer(stream, number, pb.CompileAnswer())
    first.result()


def end_the_stream(_session: RawClient, stream: RawCallbacks) -> None:
    stream.close()


def end_the_session(session: RawClient, _stream: RawCallbacks) -> None:
    session.close()


@pytest.mark.parametrize("end", [end_the_stream, end_the_session])
def test_a_client_that_is_gone_ends_the_wait(
    proxy: LocalProxy,
    connect: MakeClient,
    session: RawClient,
    stream: RawCallbacks,
    end: Callable[[RawClient, RawCallbacks], None],
) -> None:
    other = connect(proxy.address)
    compiling = session.begin_compile(asking(), [0, 1])
    asked(stream)
    end(session, stream)
    if end is end_the_stream:
        fails(compiling, Code.UNAVAILABLE, "a callback was not answered")
    # On the thread that the first one would hold.
    assert other.compile(DOUBLE, [0])


def test_such_programs_are_not_kept(
    tmp_path: Path, make_proxy: MakeProxy, connect: MakeClient
) -> None:
    cache = CompileCache(tmp_path / "cache", 1 << 30, b"a machine")
    proxy = make_proxy(compile_cache=cache)
    session = connect(proxy.address, initialization_data={"sps_callbacks": NONCE})
    with RawCallbacks(session) as stream:
        for _ in range(2):
            compiling = session.begin_compile(INSPECTING, [0, 1])
            answer(stream, asked(stream)[0], pb.CompileAnswer())
            compiling.result()
    assert (cache.counts.stored, cache.counts.hits) == (0, 0)
    session.compile(DOUBLE, [0])
    assert cache.counts.stored == 1
