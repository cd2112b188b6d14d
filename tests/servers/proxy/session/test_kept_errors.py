"""What failed leaves an error, and nothing of what it was made of."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.deadlines import deadline, wait_until
from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import F32, Failed, RawClient, single, split
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from shared_pathways_service.servers.proxy.engine.compiled_program import Program
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.session import service
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy

EXHAUSTED, DATA_LOSS = 8, 15
S32 = core_pb2.DTypeProto.KIND_S32
FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)


def test_an_upload_for_which_a_device_has_no_room_frees_its_host_buffer(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(memory_limit=40, limits=Limits(host_memory_bytes=100_000))
    client = connect(proxy.address)
    for _ in range(3):
        array = client.put(np.zeros(20_000, np.float32), single(0))
        with pytest.raises(Failed, match=r"limit .* is 40 bytes") as raised:
            client.ready(array)
        assert raised.value.code == EXHAUSTED
        wait_until("no host buffer", lambda: proxy.service.host_memory.held == 0)


def test_a_broken_upload_frees_its_host_buffer(proxy: LocalProxy, client: RawClient) -> None:
    with pytest.raises(Exception, match="bytes"):
        client.store(7, b"12", size=1 << 20)
    with pytest.raises(Exception, match="bytes"):
        client.lookup(7)
    wait_until("no host buffer", lambda: proxy.service.host_memory.held == 0)


def test_a_missing_file_frees_its_host_memory(
    make_proxy: MakeProxy, connect: MakeClient, tmp_path: Path
) -> None:
    proxy = make_proxy(large_transfer_dir=tmp_path)
    (tmp_path / "mine").mkdir()
    client = connect(proxy.address, initialization_data={"sps_transfer_dir": b"mine"})
    request = proxy_pb2.GrpcHostBufferReadFromDiskRequest()
    request.metadata.session_id = client.session_id
    request.metadata.handle = 7
    request.metadata.buffer_size = 1 << 20
    # A proxy that has nothing to do collects no garbage.
    gc.collect()
    gc.disable()
    try:
        client.unary("HostBufferReadFromDisk", request)
        wait_until("no host buffer", lambda: proxy.service.host_memory.held == 0)
    finally:
        gc.enable()


def test_a_directory_that_vanishes_during_removal_does_not_retain_its_session(
    make_proxy: MakeProxy,
    connect: MakeClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(directory: Path) -> None:
        directory.rmdir()
        raise FileNotFoundError(directory)

    monkeypatch.setattr(service, "remove_directory", gone)
    proxy = make_proxy(memory_limit=1000, large_transfer_dir=tmp_path)
    (tmp_path / "mine").mkdir()
    client = connect(proxy.address, initialization_data={"sps_transfer_dir": b"mine"})
    client.ready(client.put(FOUR, single(0)))
    assert proxy.engine.memory.held(0) == 16
    client.close()
    wait_until("no memory", lambda: proxy.engine.memory.held(0) == 0)


def test_a_failed_fetch_leaves_nothing(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(limits=Limits(host_memory_bytes=100_000))
    client = connect(proxy.address)
    array = client.put(np.zeros(15_000, np.float32), single(0))
    client.ready(array)
    # The thread that took the upload may hold it a moment longer.
    wait_until("the end of the upload", lambda: proxy.service.host_memory.held == 0)
    client.begin_fetch(array)[0].result()
    (session,) = proxy.service.sessions
    held = proxy.service.host_memory.held
    for _ in range(5):
        with pytest.raises(Failed) as raised:
            client.begin_fetch(array)[0].result()
        assert raised.value.code == EXHAUSTED
    assert (len(session.buffers), proxy.service.host_memory.held) == (1, held)
    data = weakref.ref(session.arrays[array].array)
    client.call("destruct_array", array_handle=[array])
    gc.collect()
    assert data() is None


def test_failed_programs_hold_no_memory_of_a_device(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(memory_limit=1000)
    client = connect(proxy.address)
    program = client.compile(DOUBLE, [0])
    wrong = client.put(EIGHT, single(0))
    failed = [client.execute(program, [wrong])[0] for _ in range(5)]
    for array in failed:
        with pytest.raises(Failed):
            client.ready(array)
    client.call("destruct_array", array_handle=[wrong])
    wait_until("no memory", lambda: proxy.engine.memory.held(0) == 0)


def test_the_error_of_a_lost_slice_does_not_grow(proxy: LocalProxy, client: RawClient) -> None:
    array = client.put(FOUR, single(0))
    client.ready(array)
    epoch = proxy.slices.current()[0]
    proxy.lose(0)
    (session,) = proxy.service.sessions
    for _ in range(3):
        with pytest.raises(Failed) as raised:
            client.begin_fetch(array)[0].result()
        assert raised.value.code == DATA_LOSS
    assert epoch.lost is not None
    assert epoch.lost.__traceback__ is None
    assert len(session.buffers) == 0


def test_handles_do_not_retain_a_refused_request(proxy: LocalProxy, client: RawClient) -> None:
    program = client.compile(DOUBLE, [0])
    with pytest.raises(Failed, match="Unknown array handle"):
        client.call(
            "loaded_executable_execute",
            loaded_executable_handle=program,
            args_handles=[1 << 40],
            result_array_handle=[77],
        )
    (session,) = proxy.service.sessions
    error = session.arrays[77].error
    assert error is not None
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


def test_memory_of_a_lost_slice_is_free_on_its_next_placement(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(memory_limit=40)
    client = connect(proxy.address)
    lost = [client.put(FOUR, single(0)), client.put(EIGHT, split(range(8)))]
    kept = client.put(FOUR, single(4))
    client.ready(*lost, kept)
    (session,) = proxy.service.sessions
    data = [weakref.ref(session.arrays[handle].array) for handle in lost]
    proxy.lose(0)
    assert proxy.slices.place(0, 9, "spare")
    gc.collect()
    assert [ref() for ref in data] == [None, None]
    assert (proxy.engine.memory.held(0), proxy.engine.memory.held(4)) == (0, 16)
    np.testing.assert_array_equal(client.fetch(client.put(np.ones(10, "f4"), single(0))), 1)
    np.testing.assert_array_equal(client.fetch(kept), FOUR)
    for handle in lost:
        with pytest.raises(Failed) as raised:
            client.fetch(handle)
        assert raised.value.code == DATA_LOSS


def test_undonated_arguments_are_copied_and_counted(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(memory_limit=24)
    client = connect(proxy.address)
    program = client.compile(sharded_double(4, ", tf.aliasing_output = 0 : i32"), range(4))
    array = client.put(EIGHT, split(range(4)))
    results = []
    for _ in range(3):
        handle = client.new_handle()
        client.call(
            "loaded_executable_execute",
            loaded_executable_handle=program,
            args_handles=[array],
            result_array_handle=[handle],
            execute_options={"non_donatable_input_indices": [0]},
        )
        results.append(handle)
    client.ready(*results[:2])
    with pytest.raises(Failed, match=r"needs 8 bytes on device 0, .* is 24 bytes, of") as r:
        client.ready(results[2])
    assert r.value.code == EXHAUSTED
    np.testing.assert_array_equal(client.fetch(array), EIGHT)


def test_a_program_with_too_many_results_leaves_no_pending_one(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(limits=Limits(handles=10))
    client = connect(proxy.address)
    results = 24
    types = ", ".join(["tensor<4xf32>"] * results)
    values = ", ".join(["%a"] * results)
    many = f"""module @many {{ func.func public @main(%a: tensor<4xf32>) -> ({types}) {{
      return {values} : {types} }} }}"""
    program = client.compile(many, [0])
    array = client.put(FOUR, single(0))
    handles = range(900, 900 + results)
    with pytest.raises(Failed, match="more needs handles"):
        client.call(
            "loaded_executable_execute",
            loaded_executable_handle=program,
            args_handles=[array],
            result_array_handle=handles,
        )
    (session,) = proxy.service.sessions
    left = session.arrays.keys() & set(handles)
    assert left
    for handle in left:
        with pytest.raises(Failed, match="--max_handles"):
            client.ready(handle)
    np.testing.assert_array_equal(client.fetch(array), FOUR)


def test_programs_in_compilation_count_as_handles(
    make_proxy: MakeProxy, connect: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = make_proxy(limits=Limits(handles=10))
    client = connect(proxy.address)
    may_go_on = threading.Event()
    compile_now = proxy.engine.compiler.compile

    def compile_later(*arguments: Any) -> Program:
        assert may_go_on.wait(deadline(60.0))
        return compile_now(*arguments)

    monkeypatch.setattr(proxy.engine.compiler, "compile", compile_later)
    try:
        waiting = [client.begin_compile(DOUBLE, [0]) for _ in range(5)]
        with pytest.raises(Failed, match="and 10 for programs that are being compiled"):
            client.compile(DOUBLE, [0])
    finally:
        may_go_on.set()
    for program in waiting:
        program.result()
    (session,) = proxy.service.sessions
    assert (len(session.programs), len(session.compiling)) == (5, 0)


def test_a_remap_changes_no_shards_type_or_shape(client: RawClient) -> None:
    array = client.put(FOUR, single(0))
    for shape, kind in (([1024], F32), ([4], S32)):
        plan = core_pb2.RemapPlanProto()
        for spec, dims, dtype in (
            (plan.input_specs.add(), [4], F32),
            (plan.output_specs.add(), shape, kind),
        ):
            spec.dtype.kind = dtype
            spec.shape.dims.extend(dims)
            spec.sharding.CopyFrom(single(0))
        plan.mappings.add(
            in_array=0,
            out_array=0,
            from_start=[0],
            from_end=[1],
            from_step=[1],
            to_start=[0],
            to_end=[1],
            to_step=[1],
        )
        with pytest.raises(Failed, match="the remap plan makes shards"):
            client.call("remap_arrays", plan=plan, array_handles=[array], result_handles=[90])
