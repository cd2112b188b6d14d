"""A proxy whose devices are in executors, one of which is killed."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any

import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.executors import running_executors
from harness.proxy.programs import DOUBLE, ENDLESS, sharded_double, sharded_endless, sharded_sum
from harness.proxy.raw import Failed, single, split
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.flags import ExecutorOptions
from shared_pathways_service.servers.proxy.executors.executors import Executors
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from tests.servers.proxy.conftest import MakeClient, StartProxy
from tests.servers.proxy.processes import DATA_LOSS, EIGHT, FOUR, address_of

_STANDSTILL_S = 16.0
#: The first slice has two hosts, the second one has one.
SLICES = ("tpuv6e:2x4", "tpuv6e:2x2")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"engine": "local"}, "--executors"),
        ({"executors": ("a:1",)}, "--executors"),
        ({"executors": ("a:1", "b:2", "c")}, "--executors"),
        ({"resource_manager_address": "a:1"}, "--executors"),
        ({"engine": "local", "executors": (), "platform": "tpu"}, "--platform"),
        ({"ffi_targets": ("a=b:c",)}, "--ffi_targets"),
        ({"compile_cache_dir": "/somewhere"}, "--compile_cache_dir"),
    ],
)
def test_flags_that_do_not_fit_are_refused(fields: dict[str, Any], field: str) -> None:
    fitting: dict[str, Any] = {
        "virtual_slices": SLICES,
        "engine": "distributed",
        "executors": ("a:1", "b:2", "c:3"),
    }
    ProxyServerOptions(**fitting)
    with pytest.raises(InvalidRequestError) as raised:
        ProxyServerOptions(**{**fitting, **fields})
    assert raised.value.field == field


def test_a_resource_manager_names_the_executors() -> None:
    options = ProxyServerOptions(
        virtual_slices=SLICES, engine="distributed", resource_manager_address="a:1"
    )
    assert options.places_executors
    local = ProxyServerOptions(virtual_slices=SLICES, resource_manager_address="a:1")
    assert not local.places_executors


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_an_executor_has_one_address(address: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        ExecutorOptions(instance_type=SLICES[0], bind_address=address)
    assert raised.value.field == "--bind_address"


#: Each with its index among the hosts of its slice; the last one is a slice more.
HOSTS = ((SLICES[0], 0), (SLICES[0], 1), (SLICES[1], 0), (SLICES[1], 0))


def refusal(address: str, token: str) -> StatusError:
    """Returns the error of a stream that an executor refuses."""
    with contextlib.closing(Executors((), (), None)) as executors:
        link = executors.connect(address, token, lambda _link, _reason: None)
        try:
            error = link.ask(pb.ExecutorCommand(meet=pb.MeetHosts())).exception(DEADLINE_S)
        finally:
            link.close()
    assert isinstance(error, StatusError)
    return error


def test_a_killed_executor_takes_its_slice_and_no_other(
    start_proxy: StartProxy, connect: MakeClient
) -> None:
    flags = [[f"--instance_type={type_}", f"--host_index={index}"] for type_, index in HOSTS]
    with running_executors(*flags) as running:
        executors = running.processes
        wrong = refusal(running.addresses[0], "another-token")
        assert "the token is not this executor's" in wrong.message
        proxy = start_proxy(*running.proxys_flags, slices=",".join((*SLICES, SLICES[1])))
        # (It has its stream once the proxy serves.)
        second = refusal(running.addresses[0], running.token)
        assert "this executor has its proxy" in second.message
        assert wrong.code is second.code is Code.DATA_LOSS
        client = connect(address_of(proxy))
        # Over the hosts of one slice, and over both slices.
        for devices in ((3, 4), (7, 8)):
            program = client.compile(sharded_double(2), devices)
            (result,) = client.execute(program, [client.put(EIGHT, split(devices))])
            np.testing.assert_array_equal(client.fetch(result), 2 * EIGHT)
        double = client.compile(DOUBLE, (8,))
        kept, lost = client.put(FOUR, single(8)), client.put(FOUR, single(0))
        # A host that hangs delays no other slice (in the same session, and whatever waits for it).
        executors[0].signal(signal.SIGSTOP)
        for _ in range(8):
            client.put(FOUR, single(0))
        (result,) = client.execute(double, [kept])
        np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
        executors[0].signal(signal.SIGCONT)
        # What is fetched arrives, also if a later program takes the memory.
        taking = client.compile(sharded_double(2, ", tf.aliasing_output = 0 : i32"), (8, 9))
        taken = client.put(EIGHT, split((8, 9)))
        fetching, buffer = client.begin_fetch(taken)
        (result,) = client.execute(taking, [taken])
        fetching.result()
        np.testing.assert_array_equal(np.frombuffer(client.lookup(buffer), np.float32), EIGHT)
        np.testing.assert_array_equal(client.fetch(result), 2 * EIGHT)
        endless = client.compile(sharded_endless(2), (7, 8))
        (running_on_both,) = client.execute(endless, [client.put(FOUR, split((7, 8)))])
        # On the host that stays: what was started there, and what waits behind it.
        alone = client.compile(ENDLESS, (0,))
        (stuck,) = client.execute(alone, [client.put(FOUR, single(0))])
        (behind,) = client.execute(alone, [stuck])
        executors[1].kill()
        for array in (running_on_both, lost, stuck, behind):
            with pytest.raises(Failed, match="virtual slice 0") as raised:
                client.fetch(array)
            assert raised.value.code == DATA_LOSS
        # The program that spans both still computes on the other slice's host.
        (result,) = client.execute(double, [kept])
        np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
        np.testing.assert_array_equal(client.fetch(kept), FOUR)
        # Sets of slices that are used for the first time: no host waits for the lost one.
        program = client.compile(sharded_double(2), (7, 12))
        (result,) = client.execute(program, [client.put(EIGHT, split((7, 12)))])
        with pytest.raises(Failed, match="virtual slice 0") as raised:
            client.fetch(result)
        assert raised.value.code == DATA_LOSS
        program = client.compile(sharded_sum(2), (8, 12))
        (result,) = client.execute(program, [client.put(EIGHT, split((8, 12)))])
        np.testing.assert_array_equal(client.fetch(result), EIGHT + 28)
        # Executors end with their proxy, by the end of the stream or by jaxlib, which aborts.
        proxy.kill()
        for executor in executors:
            executor.wait()


@pytest.mark.race
def test_a_proxy_that_stands_still_for_a_while_loses_nothing(
    start_proxy: StartProxy, connect: MakeClient
) -> None:
    flags = [f"--instance_type={SLICES[1]}"]
    with running_executors(flags, flags) as running:
        proxy = start_proxy(*running.proxys_flags, slices=",".join([SLICES[1]] * 2))
        client = connect(address_of(proxy))
        program = client.compile(sharded_sum(2), (0, 4))
        values = client.put(EIGHT, split((0, 4)))
        proxy.signal(signal.SIGSTOP)
        # Longer than an executor that stands still may take, and than jaxlib's limit once was.
        threading.Event().wait(_STANDSTILL_S)
        proxy.signal(signal.SIGCONT)
        (result,) = client.execute(program, [values])
        np.testing.assert_array_equal(client.fetch(result), EIGHT + 28)
