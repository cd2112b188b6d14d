"""Profiles over the wire: one at a time, with the token, and none that its client has left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import single
from shared_pathways_service.errors import InvalidRequestError, ServiceNotReady
from shared_pathways_service.jax_client.plugin.device_profile import DeviceProfile, ProfileFailed
from shared_pathways_service.operations.connection_profiles import take_profile
from shared_pathways_service.protocol import profiles_pb2 as pb
from shared_pathways_service.protocol import profiles_pb2_grpc as pb_grpc
from shared_pathways_service.protocol import xplane_pb2
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.servers.proxy.limits import Limits
from tests.servers.proxy import transports
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy, wait_until

transport = transports.both
TOKEN = "the-tenants-token"


def requests(*messages: pb.ProfileRequest) -> Iterator[pb.ProfileRequest]:
    return iter(messages)


def ask(proxy: LocalProxy, *messages: pb.ProfileRequest, token: str = "") -> list[pb.ProfileReply]:
    """Sends requests, and returns the replies."""
    metadata = bearer(token or None)
    with grpc.insecure_channel(proxy.address) as channel:
        stub = pb_grpc.ProfilesStub(channel)
        replies: Any = stub.Take(requests(*messages), metadata=metadata, timeout=DEADLINE_S)
        found: list[pb.ProfileReply] = []
        try:
            found.extend(replies)
        except grpc.RpcError as error:
            # (The public server ends a stream by cancelling it.)
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise
        return found


START = pb.ProfileRequest(start=pb.StartProfile(host_tracer_level=2))
CLOCK = pb.ProfileRequest(clock=pb.ReadClock())
STOP = pb.ProfileRequest(stop=pb.StopProfile())
COLLECT = pb.ProfileRequest(collect=pb.CollectProfile())


def test_a_profile_has_the_devices_of_all_slices(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy()
    client = connect(proxy.address)
    profile = DeviceProfile(proxy.address, None)
    try:
        for device in (0, 5):
            (result,) = client.execute(
                client.compile(DOUBLE, [device]),
                [client.put(np.arange(4, dtype=np.float32), single(device))],
            )
            client.ready(result)
        profile.stop()
        files, notes = profile.collect()
    finally:
        profile.close()
    assert notes == []
    assert list(files) == ["sps-proxy.xplane.pb"]
    planes = {p.name for p in xplane_pb2.XSpace.FromString(files["sps-proxy.xplane.pb"]).planes}
    assert {
        "/host:CPU",
        "/device:CUSTOM:slice 0 host 0 device 0",
        "/device:CUSTOM:slice 1 host 0 device 5",
    } <= planes


def test_one_at_a_time(make_proxy: MakeProxy) -> None:
    proxy = make_proxy()
    first = DeviceProfile(proxy.address, None)
    try:
        with pytest.raises(ProfileFailed, match="one profile at a time") as refused:
            DeviceProfile(proxy.address, None)
        assert refused.value.is_refused
        first.stop()
        # It is kept until it is fetched, but another one may begin.
        DeviceProfile(proxy.address, None).close()
        assert "sps-proxy.xplane.pb" in first.collect()[0]
    finally:
        first.close()


def test_a_client_that_is_gone_ends_its_profile(make_proxy: MakeProxy) -> None:
    proxy = make_proxy()
    before = set(threading.enumerate())
    DeviceProfile(proxy.address, None).close()

    def can_begin() -> bool:
        try:
            DeviceProfile(proxy.address, None).close()
        except ProfileFailed as error:
            if not error.is_refused:
                raise
            return False
        return True

    wait_until(can_begin)
    wait_until(lambda: not [t for t in set(threading.enumerate()) - before if "profile" in t.name])


def test_only_with_the_token(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(token=TOKEN)
    for wrong in (None, "another"):
        with pytest.raises(ProfileFailed, match=r"UNAUTHENTICATED|PERMISSION_DENIED"):
            DeviceProfile(proxy.address, wrong)
    DeviceProfile(proxy.address, TOKEN).close()


def test_a_profile_that_is_too_large(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(limits=Limits(trace_bytes=10))
    profile = DeviceProfile(proxy.address, None)
    try:
        profile.stop()
        files, notes = profile.collect()
    finally:
        profile.close()
    assert files == {}
    assert "no planes of the proxy" in notes[0]
    assert "(--trace_bytes) is 10 bytes" in notes[0]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ((STOP,), "has not started"),
        ((COLLECT,), "has not started"),
        ((START, START), "has started its profile"),
        ((pb.ProfileRequest(),), "not known"),
        (
            (pb.ProfileRequest(start=pb.StartProfile(host_tracer_level=9)),),
            "host_tracer_level is 9, not 0 to 3",
        ),
    ],
)
def test_requests_that_do_not_fit(
    make_proxy: MakeProxy, messages: tuple[pb.ProfileRequest, ...], words: str
) -> None:
    proxy = make_proxy()
    # Nothing follows a failure.
    *_, last = ask(proxy, *messages, CLOCK)
    assert words in last.failed.message
    wait_until(lambda: ask(proxy, START)[-1].WhichOneof("reply") == "started")


def test_the_clock_is_this_machines(make_proxy: MakeProxy) -> None:
    proxy = make_proxy()
    replies = ask(proxy, CLOCK, CLOCK)
    first, second = (reply.clock.clock_ns for reply in replies)
    assert 1_700_000_000_000_000_000 < first <= second


def test_a_client_learns_the_longest_profile(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(limits=Limits(trace_s=7))
    profile = DeviceProfile(proxy.address, None)
    try:
        assert profile.most_s == 7
    finally:
        profile.close()


@pytest.mark.parametrize(
    ("limits", "seconds", "error", "words"),
    [
        (Limits(trace_s=7), 8.0, InvalidRequestError, r"--seconds.*8.*at most 7"),
        (Limits(trace_bytes=10), 0.1, ServiceNotReady, r"without a result: .*trace_bytes\) is 10"),
    ],
)
def test_sps_profile_of_what_the_limits_refuse(
    make_proxy: MakeProxy,
    tmp_path: Path,
    limits: Limits,
    seconds: float,
    error: type[Exception],
    words: str,
) -> None:
    proxy = make_proxy(limits=limits)
    with pytest.raises(error, match=words):
        take_profile("one", proxy.address, None, seconds=seconds, output=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidRequestError, match=r"--output.*file/below"):
        take_profile("one", "unix:/nowhere", None, seconds=1.0, output=file / "below")


def test_a_client_that_is_killed_ends_its_profile(make_proxy: MakeProxy) -> None:
    proxy = make_proxy()
    code = (
        "import sys, time\n"
        "from shared_pathways_service.jax_client.plugin.device_profile import DeviceProfile\n"
        "profile = DeviceProfile(sys.argv[1], None)\n"
        "print('begun', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, proxy.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "begun\n"
            with pytest.raises(ProfileFailed, match="one profile at a time"):
                DeviceProfile(proxy.address, None)
        finally:
            client.kill()
    wait_until(lambda: ask(proxy, START)[-1].WhichOneof("reply") == "started")
