"""One client at a time, and clients that end without ending their session."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import grpc
import pytest

from harness.deadlines import deadline
from harness.patience import patience
from harness.processes import DEADLINE_S
from harness.proxy.raw import RawClient
from shared_pathways_service.protocol.ifrt.probe import probe
from shared_pathways_service.testing.google_images.held_connections import relaying
from shared_pathways_service.testing.google_images.http2_streams import OpenStreams
from tests.testing.google_images.cluster import VARIABLE, Cluster

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, PING = 0, 1, 3, 6

#: A program with JAX, which ends as the first argument says.
PROGRAM = """
import os, sys
import jax.numpy as jnp
x = jnp.arange(4.0)
print(float(x.sum()), flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


def frame(kind: int, stream: int, *, flags: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_streams_are_open_until_either_side_ends_them(step: int) -> None:
    def take(direction: str, data: bytes) -> None:
        for at in range(0, len(data), step):
            getattr(streams, f"take_from_{direction}")(data[at : at + step])

    streams = OpenStreams()
    take("client", PREFACE + frame(PING, 0, payload=b"12345678"))
    assert not streams
    # A payload may look like anything.
    session = frame(HEADERS, 1, payload=frame(RST_STREAM, 1)) + frame(DATA, 1, payload=b"x" * 30)
    take("client", session)
    assert streams
    take("server", frame(HEADERS, 1) + frame(DATA, 1, payload=b"y"))
    assert streams
    take("client", frame(RST_STREAM, 1, payload=b"\0\0\0\x08"))
    assert not streams
    take("client", frame(HEADERS, 3) + frame(DATA, 3, flags=1))
    assert not streams
    take("client", frame(HEADERS, 5))
    take("server", frame(HEADERS, 5, flags=1))
    assert not streams


def test_pings_are_owed_until_they_are_answered() -> None:
    streams = OpenStreams()
    streams.take_from_server(
        frame(PING, 0, payload=b"12345678") + frame(PING, 0, payload=b"abcdefgh")
    )
    streams.take_from_client(PREFACE + frame(PING, 0, flags=1, payload=b"12345678"))
    streams.take_from_server(frame(PING, 0, flags=1, payload=b"of mine!"))
    assert streams.take_answers() == frame(PING, 0, flags=1, payload=b"abcdefgh")
    assert streams.take_answers() == b""


def test_a_relay_keeps_the_connection_of_a_client_that_left_its_streams() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with relaying("127.0.0.1", 0, server.getsockname()[1]) as address:
            host, _, port = address.rpartition(":")
            client = socket.create_connection((host, int(port)), DEADLINE_S)
            far, _ = server.accept()
            client.sendall(PREFACE + frame(HEADERS, 1))
            assert far.recv(1000)
            greeting = frame(HEADERS, 1, payload=b"hello")
            far.sendall(greeting)
            assert client.recv(1000) == greeting
            client.close()
            # The server is not told; its pings are answered in the client's place.
            ping = frame(PING, 0, payload=b"12345678")
            answer = frame(PING, 0, flags=1, payload=b"12345678")
            far.settimeout(DEADLINE_S)
            for _ in range(3):
                far.sendall(ping)
                assert far.recv(len(answer)) == answer
        far.settimeout(DEADLINE_S)
        assert far.recv(1) == b""
        far.close()


def environment(address: str) -> dict[str, str]:
    return {
        **os.environ,
        "JAX_PLATFORMS": "proxy",
        "JAX_BACKEND_TARGET": f"grpc://{address}",
        VARIABLE: "true",
    }


def run(address: str, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env=environment(address),
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_S,
        check=False,
    )


@pytest.mark.race
def test_programs_that_end_properly_take_turns(cluster: Cluster) -> None:
    address, _ = cluster.start_serving()
    for _ in range(2):
        done = run(address, "properly")
        assert (done.stdout, done.returncode) == ("6.0\n", 0), done.stderr


@pytest.mark.race
def test_a_killed_program_holds_the_session_until_the_proxy_restarts(cluster: Cluster) -> None:
    address, process = cluster.start_serving()
    assert run(address, "killed").returncode == -signal.SIGKILL
    # Other calls are answered, but there is no further session.
    assert probe(address, DEADLINE_S).protocol
    with RawClient(address, send_init=False) as other:
        assert other.status() == (grpc.StatusCode.CANCELLED, "Cancelled")
    # (It tries again until its time is over.)
    with patience(0.2):
        done = run(address, "properly")
    assert done.returncode == 1
    assert "another client holds the session of the proxy at grpc://127." in done.stderr
    assert "end the other process; if there is none, connect again" in done.stderr
    process.stop()
    address, _ = cluster.start_serving()
    assert run(address, "properly").stdout == "6.0\n"


def test_attaching_says_that_another_client_holds_the_session(cluster: Cluster) -> None:
    address, _ = cluster.start_serving()
    program = f"""
from shared_pathways_service.errors import CapacityError
from shared_pathways_service.jax_client import ProxyTarget, attach
try:
    attach(ProxyTarget(address={address!r}, one_client=True), timeout={deadline(8.0)})
except CapacityError as error:
    print(error)
"""
    with RawClient(address) as first:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=3 * DEADLINE_S,
            check=False,
        )
        # The first client has what it had.
        assert first.call("get_default_device_assignment", num_replicas=1, num_partitions=1)
    assert done.returncode == 0, done.stderr
    assert f"another client holds the session of the proxy at grpc://{address}" in done.stdout
    assert "connect again, to a new proxy" in done.stdout
