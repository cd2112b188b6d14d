"""What every implementation of `DeviceClient` does; each is tested with the same."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.executors import running_executors
from harness.proxy.programs import compile_options, sharded_double, sharded_sum
from harness.proxy.raw import split
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.interface import (
    DEVICE_MEMORY,
    DeviceClient,
    Executable,
)
from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.executors.executors import Executors
from shared_pathways_service.servers.proxy.executors.remote_arrays import RemoteArray
from shared_pathways_service.servers.xla.shardings import Placings
from tests.servers.devices.float_arrays import bytes_passed, content, floats, put
from tests.servers.proxy.xla.option_bytes import override

Kind = core_pb2.DTypeProto
EIGHT = np.arange(8, dtype=np.float32)
#: Two slices, of four devices and of two.
SLICE_OF = (0, 0, 0, 0, 1, 1)
#: The host of each device, by implementation; of three, the first slice has two.
HOST_OF = {"one executor": (0,) * 6} | dict.fromkeys(
    ("three executors", "three executors for cuda"), (0, 0, 1, 1, 2, 2)
)


@pytest.fixture(params=["local", *HOST_OF], scope="module")
def placings(request: pytest.FixtureRequest) -> Iterator[Placings]:
    """Of two slices, of four devices and of two."""
    if request.param == "local":
        yield Placings(SLICE_OF)
        return
    host_of = HOST_OF[request.param]
    flags = ["--instance_type=tpuv6e1t:2x4", f"--devices={len(host_of) // len(set(host_of))}"]
    platform = "cuda" if "cuda" in request.param else "cpu"
    with running_executors(*[flags] * len(set(host_of)), platform=platform) as running:
        lost: list[str] = []
        executors = Executors(running.addresses, host_of, running.token, platform=platform)
        executors.watch(lambda _, reason: lost.append(reason))
        yield Placings(SLICE_OF, make=executors.client)
        executors.close()
        assert not lost
        # An executor ends with its proxy.
        assert [process.wait() for process in running.processes] == [0] * len(running.processes)


# ---- arrays


@pytest.mark.parametrize("devices", [(2,), (0, 1), (3, 1), (4, 5), (3, 4)])
def test_pieces_come_back_in_the_order_of_the_devices(
    placings: Placings, devices: tuple[int, ...]
) -> None:
    spec = floats(placings.from_wire(split(devices)))
    client = spec.placing.client
    array = put(spec, EIGHT)
    size = 8 // len(devices)
    pieces = [piece.tolist() for piece in client.fetch(array)]
    assert pieces == [list(range(i * size, (i + 1) * size)) for i in range(len(devices))]
    parts = client.parts(array)
    assert [client.fetch(part)[0].tolist() for part in parts] == pieces
    assert not client.is_deleted(array)


def test_a_joined_array_has_its_pieces_memory(placings: Placings) -> None:
    client = placings.client((0,))
    parts = [
        client.put(floats(placings.single(i), (4,)), [EIGHT[i * 4 : i * 4 + 4].copy()])
        for i in range(2)
    ]
    joined = client.join(floats(placings.from_wire(split((0, 1)))), parts)
    assert client.addresses(joined) == [client.addresses(part)[0] for part in parts]
    assert np.concatenate(client.fetch(joined)).tolist() == EIGHT.tolist()


def test_another_clients_pieces(placings: Placings) -> None:
    # (A slice's own client, and that of both slices.)
    spec = floats(placings.from_wire(split((3, 4))))
    parts = [
        placings.client((slice_,)).put(floats(placings.single(i), (4,)), [EIGHT[first : first + 4]])
        for i, slice_, first in ((3, 0, 0), (4, 1, 4))
    ]
    assert content(spec, spec.placing.client.adopt(spec, parts)).tolist() == EIGHT.tolist()


@pytest.mark.parametrize("memory_kind", [DEVICE_MEMORY, "pinned_host"])
def test_a_copy_has_memory_of_its_own(placings: Placings, memory_kind: str) -> None:
    spec = floats(placings.from_wire(split((0, 1))))
    client = spec.placing.client
    array = put(spec, EIGHT)
    for devices in ((0, 1), (2, 3)):
        target = floats(placings.on(spec.placing, devices, memory_kind))
        copied = client.copy(target, client.parts(array))
        assert content(target, copied).tolist() == EIGHT.tolist()
        assert set(client.addresses(copied)).isdisjoint(client.addresses(array))


def test_bytes_of_another_type(placings: Placings) -> None:
    spec = floats(placings.from_wire(split((0, 1))))
    client = spec.placing.client
    target = Spec(Kind.KIND_S32, np.dtype(np.int32), (8,), spec.placing)
    array = client.reinterpret(target, client.parts(put(spec, EIGHT)))
    assert content(target, array).tolist() == EIGHT.view(np.int32).tolist()


@pytest.mark.parametrize("devices", [(0, 1, 2, 3), (3, 2), (4,), (2, 5)])
def test_another_sharding(placings: Placings, devices: tuple[int, ...]) -> None:
    spec = floats(placings.from_wire(split((1, 0))))
    parts = spec.placing.client.parts(put(spec, EIGHT))
    target = floats(placings.from_wire(split(devices)))
    array = target.placing.client.reshard(target, spec.placing, parts)
    assert content(target, array).tolist() == EIGHT.tolist()


def test_data_goes_from_host_to_host_and_not_through_this_process(placings: Placings) -> None:
    whole = np.arange(1 << 20, dtype=np.float32)
    spec = floats(placings.from_wire(split((0, 3))), whole.shape)
    parts = spec.placing.client.parts(put(spec, whole))
    before = bytes_passed(placings, len(SLICE_OF))
    made = []
    targets: list[tuple[int, ...]] = [(1, 2), (4, 5), (3, 4), (5, 0, 4, 1), (4,)]
    for devices in targets:
        target = floats(placings.from_wire(split(devices)), whole.shape)
        client = target.placing.client
        made.append((target, client.reshard(target, spec.placing, parts)))
        if len(devices) == len(parts):
            made.append((target, client.copy(target, parts)))
            made.append((target, client.adopt(target, parts)))
    passed = bytes_passed(placings, len(SLICE_OF)) - before
    del parts
    for target, array in made:
        np.testing.assert_array_equal(content(target, array), whole)
    # Commands and reports.
    assert passed < whole.nbytes / 64


# ---- programs


def compiled(
    placings: Placings,
    devices: tuple[int, ...],
    attributes: str = "",
    program: Callable[[int, str], str] = sharded_double,
) -> tuple[DeviceClient, Executable]:
    client = placings.client(placings.slices(devices))
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options(devices)).compile_options
    text = program(len(devices), attributes)
    return client, client.compile(text, devices, client.options(options, devices))


def some(shardings: list[bytes] | None) -> list[bytes]:
    assert shardings is not None
    return shardings


@pytest.mark.parametrize("devices", [(0, 1), (2, 1, 0, 3), (4, 5), (3, 4)])
def test_a_program_over_some_devices(placings: Placings, devices: tuple[int, ...]) -> None:
    client, executable = compiled(placings, devices)
    assert executable.name == "sharded_double"
    (kinds,) = executable.result_memory_kinds()
    assert kinds == [DEVICE_MEMORY]
    (sharding,) = some(executable.result_shardings())
    assert executable.parameter_shardings() == [sharding]
    spec = floats(placings.hlo(devices, sharding))
    run = executable.runner([spec])
    array = put(spec, EIGHT)
    for _ in range(2):
        (result,) = run([array])
        assert content(spec, result).tolist() == (2 * EIGHT).tolist()
    assert not client.is_deleted(array)


@pytest.mark.parametrize("devices", [(0, 1), (2, 1, 0, 3), (4, 5), (3, 4)])
def test_devices_exchange_data(placings: Placings, devices: tuple[int, ...]) -> None:
    _, executable = compiled(placings, devices, program=sharded_sum)
    spec = floats(placings.from_wire(split(devices)))
    run = executable.runner([spec])
    array = put(spec, EIGHT)
    for _ in range(2):
        (result,) = run([array])
        assert content(spec, result).tolist() == (EIGHT + 28).tolist()


def fail_on_one_host(array: object) -> bool:
    """Has programs that take an array fail on one of its hosts; False if there is no host."""
    if not isinstance(array, RemoteArray):
        return False
    array.links[0].free("arrays", array.number)
    return True


# (Over the hosts of a slice, and over those of both.)
@pytest.mark.parametrize("devices", [(0, 1, 2, 3), (1, 4)])
def test_programs_run_after_one_has_failed_on_one_of_its_hosts(
    placings: Placings, devices: tuple[int, ...]
) -> None:
    client, executable = compiled(placings, devices, program=sharded_sum)
    spec = floats(placings.from_wire(split(devices)))
    run = executable.runner([spec])
    kept, bad = put(spec, EIGHT), put(spec, EIGHT)
    expected = (EIGHT + 28).tolist()
    (before,) = run([kept])
    if fail_on_one_host(bad):
        with pytest.raises(StatusError, match="does not exist"):
            run([bad])
    # Arrays of before are still there: for the program, and for everything else.
    (after,) = run([kept])
    assert content(spec, after).tolist() == content(spec, before).tolist() == expected
    (of_before,) = run([before])
    assert content(spec, of_before).tolist() == (EIGHT + 28 + 28 + 8 * 28).tolist()
    joined = client.join(spec, client.parts(before))
    assert content(spec, joined).tolist() == expected
    (of_joined,) = run([joined])
    assert content(spec, of_joined).tolist() == content(spec, of_before).tolist()
    copied = client.copy(spec, client.parts(kept))
    assert content(spec, copied).tolist() == EIGHT.tolist()
    assert "sharded_sum" in executable.text()


def test_a_failed_run_among_started_ones_fails_what_uses_its_results(placings: Placings) -> None:
    _, executable = compiled(placings, (0, 1))
    spec = floats(placings.hlo((0, 1), some(executable.result_shardings())[0]))
    start = executable.starter([spec], is_quick=True)
    if start is None:  # it runs to its end
        return
    ends: list[tuple[str, StatusError | None]] = []
    ended = threading.Semaphore(0)

    def started(name: str, argument: object) -> object:
        def on_end(error: StatusError | None) -> None:
            ends.append((name, error))
            ended.release()

        (result,) = start([argument], on_end)
        return result

    array, bad = put(spec, EIGHT), put(spec, EIGHT)
    assert fail_on_one_host(bad)
    of_bad = started("uses it", started("fails", bad))
    twice = started("second", started("first", array))
    assert all(ended.acquire(timeout=DEADLINE_S) for _ in range(4))
    # In the order of the starts.
    assert [name for name, _ in ends] == ["fails", "uses it", "first", "second"]
    failed, using, *others = [error for _, error in ends]
    assert others == [None, None]
    assert failed is not None
    assert using is not None
    assert "does not exist" in failed.message
    assert (using.code, using.message) == (failed.code, failed.message)
    assert content(spec, twice).tolist() == (4 * EIGHT).tolist()
    with pytest.raises(StatusError, match="does not exist"):
        content(spec, of_bad)


def test_what_takes_the_memory_of_a_started_program_comes_after_it(placings: Placings) -> None:
    _, reading = compiled(placings, (0, 1))
    client, taking = compiled(placings, (0, 1), ", tf.aliasing_output = 0 : i32")
    spec = floats(placings.hlo((0, 1), some(reading.result_shardings())[0]))
    read, take = reading.starter([spec], is_quick=True), taking.starter([spec], is_quick=True)
    if read is None or take is None:
        return
    errors: queue.SimpleQueue[StatusError | None] = queue.SimpleQueue()
    array = put(spec, EIGHT.copy())
    for _ in range(8):
        (result,) = read([array], errors.put)
        (array,) = take([array], errors.put)
    assert not client.is_deleted(array)
    assert [errors.get(timeout=DEADLINE_S) for _ in range(16)] == [None] * 16
    assert content(spec, result).tolist() == content(spec, array).tolist() == (256 * EIGHT).tolist()


def test_what_is_known_of_a_program(placings: Placings) -> None:
    _, executable = compiled(placings, (0, 1))
    assert executable.parameter_layouts() == executable.result_layouts() == ["{0}"]
    assert executable.memory.argument_size_in_bytes == executable.memory.output_size_in_bytes == 16
    assert not executable.memory.serialized_buffer_assignment
    report = executable.memory_report()
    assert report.serialized_buffer_assignment
    report.ClearField("serialized_buffer_assignment")
    assert report == executable.memory
    assert executable.costs()["flops"] == 4.0
    assert "sharded_double" in executable.text()
    assert executable.code_bytes >= 0
    assert executable.aliased_parameters() == frozenset()


def test_a_donated_argument_is_gone(placings: Placings) -> None:
    client, executable = compiled(placings, (0, 1), ", tf.aliasing_output = 0 : i32")
    assert executable.aliased_parameters() == {0}
    spec = floats(placings.hlo((0, 1), some(executable.result_shardings())[0]))
    array = put(spec, EIGHT.copy())
    (result,) = executable.runner([spec])([array])
    assert client.is_deleted(array)
    assert content(spec, result).tolist() == (2 * EIGHT).tolist()
    with pytest.raises(StatusError, match=r"INVALID_ARGUMENT: .* deleted or donated"):
        client.join(spec, client.parts(array))


def test_arrays_that_share_the_memory_of_a_donated_one_are_gone(placings: Placings) -> None:
    client, executable = compiled(placings, (0, 1), ", tf.aliasing_output = 0 : i32")
    spec = floats(placings.from_wire(split((0, 1))))
    run = executable.runner([spec])
    # A whole by its pieces, pieces by their whole, and another whole of the same pieces.
    array = put(spec, EIGHT.copy())
    parts = client.parts(array)
    joined, another = client.join(spec, parts), client.join(spec, parts)
    run([joined])
    assert all(map(client.is_deleted, [joined, another, *parts]))


def test_a_program_that_is_loaded_again(placings: Placings) -> None:
    client, executable = compiled(placings, (1, 2))
    data = executable.serialized()
    assert data is not None
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options((1, 2))).compile_options
    loaded = client.load(data, (1, 2), client.options(options, (1, 2)))
    spec = floats(placings.from_wire(split((1, 2))))
    (result,) = loaded.runner([spec])([put(spec, EIGHT)])
    assert content(spec, result).tolist() == (2 * EIGHT).tolist()
    # Clients whose programs are the same say so.
    assert client.identity() == placings.client((0,)).identity()
    assert client.identity() != placings.client((1,)).identity()


def test_options_that_write_files_are_refused(placings: Placings) -> None:
    client = placings.client((0,))
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options((0,))).compile_options
    flags = [("xla_dump_to", "/somewhere")]
    assert client.options(options, (0,), flags).env_option_overrides[-1] == flags[0]
    with pytest.raises(StatusError, match="xla_dump_to in env_option_overrides"):
        client.options(options + override(b"xla_dump_to", b"/somewhere"), (0,))


def test_the_only_layout_of_an_array(placings: Placings) -> None:
    client = placings.client((0,))
    assert client.default_layout(np.dtype(np.float32), (2, 3), 0) == "{1,0}"
