"""Compile options and programs for which XLA would end its process, or never end.

The fuzzer (`stress.fuzz`) found each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jaxlib import xla_client

from harness.processes import ServerProcess
from harness.proxy.programs import DOUBLE, compile_options, sharded_double
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.protocol.ifrt import core_pb2, xla_pb2
from tests.servers.proxy.conftest import MakeClient, StartProxy

INVALID_ARGUMENT, UNIMPLEMENTED = 3, 12


@pytest.fixture
def process(start_proxy: StartProxy) -> ServerProcess:
    """A proxy that is a process."""
    proxy = start_proxy()
    assert proxy.ready is not None, "\n".join(proxy.lines)
    return proxy


@pytest.fixture
def session(process: ServerProcess, connect: MakeClient) -> Iterator[RawClient]:
    """A session with `process`, which lives on."""
    assert process.ready is not None
    client = connect(f"unix:{process.ready['socket']}")
    yield client
    assert run_double(client, compile_with(client, compile_options([0]))) == [2.0] * 4
    assert process.stop() == 0, "\n".join(process.lines[-30:])


def compile_with(
    client: RawClient, options: bytes, program: str = DOUBLE, named: dict[str, Any] | None = None
) -> int:
    message = core_pb2.XlaCompileOptionsProto.FromString(options)
    if named:
        parsed = xla_client.CompileOptions.ParseFromString(message.compile_options)
        parsed.env_option_overrides = list(named.items())
        message.compile_options = parsed.SerializeAsString()
    handle: int = client.call(
        "compile",
        program={"type_name": "xla::ifrt::XlaProgram", "data": program.encode()},
        compile_options={
            "type_name": "xla::ifrt::XlaCompileOptions",
            "data": message.SerializeToString(),
        },
    ).loaded_executable_handle
    return handle


def run_double(client: RawClient, program: int) -> list[float]:
    (doubled,) = client.execute(program, [client.put(np.ones(4), single(0))])
    values: list[float] = client.fetch(doubled).tolist()
    return values


@pytest.mark.parametrize("ordinal", [-20, 8, 99, (1 << 31) - 1])
def test_a_device_ordinal_that_is_none_does_not_end_the_proxy(
    session: RawClient, ordinal: int
) -> None:
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options([0]))
    build = xla_pb2.CompileOptionsProto()
    build.executable_build_options.device_ordinal = ordinal
    # Behind all that is there: the last one counts.
    options.compile_options += build.SerializeToString()
    # It is not needed beside a device assignment, and left out.
    assert run_double(session, compile_with(session, options.SerializeToString())) == [2.0] * 4


@pytest.mark.parametrize("what", ["noop_change", "silent_hlo_change"])
def test_options_by_which_xla_ends_the_process_are_switched_off(
    session: RawClient, what: str
) -> None:
    named = {f"xla_unsupported_crash_on_hlo_pass_{what}": True}
    assert (
        run_double(session, compile_with(session, compile_options([0]), named=named)) == [2.0] * 4
    )


def test_text_that_is_none_is_refused_before_xla_writes_it_into_the_log(session: RawClient) -> None:
    # XLA writes the name that it does not know into the log, as it is. When the fuzzer did not read
    # on, the pipe became full, and the proxy stood still as soon as it wrote a line.
    message = core_pb2.XlaCompileOptionsProto.FromString(compile_options([0]))
    # executable_build_options.debug_options.xla_cpu_max_isa
    message.compile_options += b"\x1a\x07\x1a\x05\xea\x14\x02\xc2\xff"
    with pytest.raises(Failed, match="xla_cpu_max_isa must be text in UTF-8"):
        compile_with(session, message.SerializeToString())


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("xla_cpu_parallel_codegen_split_count", (-1, -(1 << 31), (1 << 31) - 1), (1, 1024)),
        ("xla_reduce_window_rewrite_base_length", (-1, -(1 << 31), -(1 << 63)), (0, 1, 1 << 62)),
        ("xla_disable_all_hlo_passes", (True,), (False,)),
    ],
)
def test_values_of_options_for_which_xla_ends_or_never_ends_are_refused(
    session: RawClient, name: str, wrong: tuple[int, ...], right: tuple[int, ...]
) -> None:
    for value in wrong:
        options = core_pb2.XlaCompileOptionsProto.FromString(compile_options([0]))
        build = xla_pb2.CompileOptionsProto()
        setattr(build.executable_build_options.debug_options, name, value)
        options.compile_options += build.SerializeToString()
        told = f"{name}={value} would crash .* expected (a number from 0 to|false)"
        with pytest.raises(Failed, match=told) as raised:
            compile_with(session, options.SerializeToString())
        assert raised.value.code == INVALID_ARGUMENT
        for named in (value, str(value)):
            with pytest.raises(Failed, match=told) as raised:
                compile_with(session, compile_options([0]), named={name: named})
            assert raised.value.code == INVALID_ARGUMENT
    for value in right:
        program = compile_with(session, compile_options([0]), named={name: value})
        assert run_double(session, program) == [2.0] * 4


def test_options_that_xla_does_not_know_or_cannot_read_are_refused(session: RawClient) -> None:
    for name, value in (("xla_no_such_option", 1), ("xla_backend_optimization_level", "high")):
        with pytest.raises(Failed, match=name) as raised:
            compile_with(session, compile_options([0]), named={name: value})
        assert raised.value.code == INVALID_ARGUMENT


def test_automatic_partitioning_is_refused(session: RawClient) -> None:
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options(range(4)))
    parsed = xla_client.CompileOptions.ParseFromString(options.compile_options)
    parsed.executable_build_options.use_auto_spmd_partitioning = True
    options.compile_options = parsed.SerializeAsString()
    with pytest.raises(Failed, match="use_auto_spmd_partitioning") as raised:
        compile_with(session, options.SerializeToString(), sharded_double(4))
    assert raised.value.code == UNIMPLEMENTED


@pytest.mark.parametrize("what", ["parameters", "output"])
def test_propagation_flags_for_another_number_of_values_are_refused(
    session: RawClient, what: str
) -> None:
    for count in (0, 1, 2, 7):
        options = core_pb2.XlaCompileOptionsProto.FromString(compile_options(range(4)))
        parsed = xla_client.CompileOptions.ParseFromString(options.compile_options)
        name = f"allow_spmd_sharding_propagation_to_{what}"
        setattr(parsed.executable_build_options, name, [True] * count)
        options.compile_options = parsed.SerializeAsString()
        if count < 2:
            compile_with(session, options.SerializeToString(), sharded_double(4))
            continue
        with pytest.raises(Failed, match=f"{name} has {count} values") as raised:
            compile_with(session, options.SerializeToString(), sharded_double(4))
        assert raised.value.code == INVALID_ARGUMENT
