"""The pod of the tunnel benchmark, and clients that load it. A command is a letter and a number."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from harness.own_service import ROOT

PORT = 29000
LINK_PORT = 29002
LINK_TOKEN = "of the benchmark"
CHUNK = 1 << 20
ROUND_TRIPS = 500
Work = Callable[[int, int, threading.Barrier], None]


def serve(host: str, port: int) -> None:
    """Serves as the pod: sends ("d"), receives ("u") or echoes ("e") a number of bytes."""

    def answer(peer: socket.socket) -> None:
        buffer = memoryview(bytearray(CHUNK))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer, contextlib.suppress(OSError, ValueError):
            while True:
                head = read_exactly(peer, 17)
                verb, left = chr(head[0]), int(head[1:])
                if verb == "e":
                    peer.sendall(read_exactly(peer, left))
                while left and verb == "d":
                    left -= peer.send(buffer[:left])
                while left and verb == "u":
                    left -= peer.recv_into(buffer[:left]) or left
                if verb == "u":
                    peer.sendall(b"k")

    with socket.create_server((host, port), backlog=64) as listener, far_end(host):
        print("listening", flush=True)
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


@contextlib.contextmanager
def far_end(host: str) -> Iterator[None]:
    """Runs the far end of a link before the pod's server."""
    with tempfile.NamedTemporaryFile("w") as token:
        token.write(LINK_TOKEN)
        token.flush()
        line = [sys.executable, "-m", "shared_pathways_service.tunnel.link"]
        line += [f"--port={LINK_PORT}", f"--bind_address={host}", f"--target={host}:{PORT}"]
        child = subprocess.Popen([*line, f"--token_file={token.name}"], cwd=ROOT)
        try:
            yield
        finally:
            child.terminate()
            child.wait()


def read_exactly(peer: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += (more := peer.recv(length - len(data)))
        if not more:
            raise ValueError("the connection ended")
    return data


def command(verb: str, number: int) -> bytes:
    return f"{verb}{number:016d}".encode()


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Connects, and waits until the pod has answered."""
    peer = socket.create_connection((host, port), timeout=120)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(command("e", 1) + b"x")
    read_exactly(peer, 1)
    return peer


def down(port: int, length: int, start: threading.Barrier) -> None:
    buffer = bytearray(CHUNK)
    with connect(port) as peer:
        start.wait()
        peer.sendall(command("d", length))
        while length:
            if not (taken := peer.recv_into(buffer, min(length, CHUNK))):
                raise ConnectionError("cut off")
            length -= taken


def up(port: int, length: int, start: threading.Barrier) -> None:
    data = memoryview(os.urandom(CHUNK))
    with connect(port) as peer:
        start.wait()
        peer.sendall(command("u", length))
        while length:
            length -= peer.send(data[:length])
        read_exactly(peer, 1)


def throughput(
    work: Work, port: int, total: int, connections: int, forwarder: psutil.Process | None
) -> tuple[float, float, float]:
    """Returns MB/s, CPU seconds a GB, and those of all else that the machine does for it."""

    def cpu() -> float:
        return sum(forwarder.cpu_times()[:2]) if forwarder else 0.0

    def busy() -> float:
        times = psutil.cpu_times()
        return float(times.user + times.nice + times.system + times.irq + times.softirq)

    start = threading.Barrier(connections + 1, timeout=120)
    each = total // connections
    threads = [threading.Thread(target=work, args=(port, each, start)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    start.wait()
    began, used, others = time.perf_counter(), cpu(), busy()
    for thread in threads:
        thread.join()
    took, used, others = time.perf_counter() - began, cpu() - used, busy() - others
    return total / took / 1e6, used / (total / 1e9), (others - used) / (total / 1e9)


def round_trips(port: int, count: int = ROUND_TRIPS) -> list[float]:
    """Returns microseconds."""
    took = []
    with connect(port) as peer:
        for _ in range(count):
            began = time.perf_counter()
            peer.sendall(command("e", 64) + bytes(64))
            read_exactly(peer, 64)
            took.append((time.perf_counter() - began) * 1e6)
    return sorted(took)


def round_trips_during(work: Work, port: int, total: int) -> list[float]:
    """Returns microseconds of round trips on a connection while another one transfers `total`."""
    start = threading.Barrier(2, timeout=120)
    transfer = threading.Thread(target=work, args=(port, total, start))
    transfer.start()
    took: list[float] = []
    start.wait()
    while transfer.is_alive():
        took += round_trips(port, 10)
    transfer.join()
    return sorted(took)
