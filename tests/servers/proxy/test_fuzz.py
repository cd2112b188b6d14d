"""The short form of `stress.fuzz`."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jaxlib import xla_client

from harness.processes import DEADLINE_S, ServerProcess
from harness.proxy.programs import DOUBLE, ENDLESS, compile_options, sharded_double
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import core_pb2, xla_pb2
from stress.fuzz.campaign import Campaign, started_proxy
from stress.fuzz.conversation import FuzzError
from stress.fuzz.observer import DEBUGGERS
from stress.fuzz.rounds import ROUNDS, run_sequence
from stress.fuzz.witness import Witness, check_nothing_left
from tests.servers.proxy.conftest import LocalProxy, MakeClient, StartProxy
from tests.servers.proxy.session.test_sessions import wait_until

INVALID_ARGUMENT, UNIMPLEMENTED = 3, 12


@pytest.mark.race
def test_random_requests_and_bytes_hurt_nobody() -> None:
    campaign = Campaign(seed=20, tell=print)
    campaign.run(15.0)
    assert set(campaign.done) == set(ROUNDS)
    assert campaign.checked > 0


def test_the_fuzzer_sees_what_is_left(proxy: LocalProxy, connect: MakeClient) -> None:
    witness = Witness(proxy.address)
    try:
        wait_until(lambda: witness.checked > 0)
        witness.pause()
        check_nothing_left(proxy.address, DEADLINE_S)
        with connect(proxy.address) as other:
            with pytest.raises(FuzzError, match="'open_sessions': 2"):
                check_nothing_left(proxy.address, 0)
            other.put(np.ones(4), single(0))
            other.store(7, bytes(100))
            with pytest.raises(FuzzError, match=r"'open_handles': 5.*'host_buffers': 1,"):
                check_nothing_left(proxy.address, 0)
        check_nothing_left(proxy.address, DEADLINE_S)
    finally:
        witness.close()


def test_of_a_proxy_that_does_not_answer_it_tells_where_its_threads_are() -> None:
    with started_proxy() as (_, target), RawClient(target.address) as client:
        program = client.compile(ENDLESS, [0])
        client.execute(program, [client.put(np.ones(4), single(0))])
        observer = dataclasses.replace(target.observer, devices=(7,), debuggers={})
        silent = dataclasses.replace(target, observer=observer, deadline_s=10.0)
        with pytest.raises(FuzzError, match="no answer to check_value_ready within 10 s"):
            run_sequence(silent, [("run", 0, 1, []), ("ready", 0, 0, [1])], ifrt.PROTOCOL_MAX)
    (look,) = observer.looks
    # The program stands still that the other one, which does not end, holds up; nothing else does.
    assert look["answers"].keys() == {"counters"} | {
        f"{what} on device 7" for what in ("session", "compile", "run")
    }
    assert all(told.startswith("after ") for told in look["answers"].values()), look["answers"]
    assert any("proxy/execution/executor.py" in line for line in look["python"])
    assert any(thread["cpu_s_between"] > 0 for thread in look["threads"].values())
    assert json.dumps(look)


def test_of_a_proxy_that_does_nothing_it_tells_that() -> None:
    debuggers = {name: DEBUGGERS[name] for name in ["py-spy --nonblocking"]}
    with started_proxy() as (process, target):
        observer = dataclasses.replace(target.observer, patience_s=1.0, debuggers=debuggers)
        silent = dataclasses.replace(target, observer=observer, deadline_s=1.0)
        process.signal(signal.SIGSTOP)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                run_sequence(silent, [("assignment", 1, 1, [])], ifrt.PROTOCOL_MAX)
    assert len(observer.looks) == 2  # of one proxy that is enough
    for look in observer.looks:
        assert look["answers"].keys() == {
            "counters", "session on device 0", "session on device 7",
        }  # fmt: skip
        assert all(told.startswith("not in ") for told in look["answers"].values())
        assert look["python"] == ["none in 1 s"]
        assert {thread["state"] for thread in look["threads"].values()} == {"T"}
        # (Where debuggers are not allowed to look, it says so.)
        assert look["py-spy --nonblocking"]


# ---- what it found


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
        told = f"{name}={value} would end .* expected (a number from 0 to|false)"
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
