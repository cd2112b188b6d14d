"""Measures the tunnel beside `kubectl port-forward`, kr8s and the `kubernetes` client's stream.

    python -m benchmarks.tunnel [--megabytes 200] [--rounds 3] [--only ours …] [--out F]

One pod on a testbed (a real API server and kubelet endpoint), the same sizes for all and in turns,
so that whatever else the machine does hits all alike: the ratios are the result. CPU seconds are
those of the forwarding process; the bound is what a forwarder that costs nothing would reach if all
cores did nothing but the rest of the way (API server, kubelet, pod, client). The `kubernetes`
client's stream is no forwarder: threads that pump stand around it. For the delay a process holds
every byte back for half of it in each direction, between the forwarder and the API server, or
between the client and the pod ("raw TCP"). Memory is that of the relay's process while a reader
stalls before a pod that sends as fast as it can.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from harness.own_service import ROOT, write_result

PORT = 29000
DELAY_S = 0.05
CHUNK = 1 << 20
ROUND_TRIPS = 500
FORWARDERS = ("ours", "kubectl", "kr8s", "kubernetes")
Work = Callable[[int, int, threading.Barrier], None]


# ---- the pod, and who loads it: a command is a letter and a number of bytes


def serve(host: str, port: int) -> None:
    """Is the pod: sends ("d"), takes ("u") and returns ("e") as many bytes as it is told."""

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

    with socket.create_server((host, port), backlog=64) as listener:
        print("listening", flush=True)
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


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


def round_trips(port: int) -> list[float]:
    """Returns microseconds."""
    took = []
    with connect(port) as peer:
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            peer.sendall(command("e", 64) + bytes(64))
            read_exactly(peer, 64)
            took.append((time.perf_counter() - began) * 1e6)
    return sorted(took)


# ---- forwarders, each a process


def forward_ours(port: int, url: str, token: str) -> None:
    import aiohttp

    from shared_pathways_service.tunnel.relay import Relay

    async def run() -> None:
        headers = {"Authorization": f"Bearer {token}"}
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE

        async with aiohttp.ClientSession() as session:

            async def dial(asked: Mapping[str, str]) -> aiohttp.ClientResponse:
                return await session.get(url, headers={**headers, **asked}, ssl=tls)

            directory = Path(tempfile.gettempdir())
            relay = Relay(dial, pod="load", runtime_dir=directory, local_port=port)
            async with relay:
                await relay.start()
                await asyncio.Event().wait()

    asyncio.run(run())


def forward_kr8s(port: int, kubeconfig: str, namespace: str) -> None:
    import kr8s
    from kr8s.asyncio.objects import Pod

    async def run() -> None:
        api = await kr8s.asyncio.api(kubeconfig=kubeconfig)
        pod = await Pod.get("load", namespace=namespace, api=api)
        async with pod.portforward(PORT, local_port=port):
            await asyncio.Event().wait()

    asyncio.run(run())


def forward_kubernetes(port: int, kubeconfig: str, namespace: str) -> None:
    from kubernetes import client, config
    from kubernetes.stream import portforward

    config.load_kube_config(kubeconfig)
    forward = client.CoreV1Api().connect_get_namespaced_pod_portforward

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(256 << 10):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def join(local: socket.socket) -> None:
        remote = portforward(forward, "load", namespace, ports=str(PORT)).socket(PORT)
        remote.setblocking(True)
        threading.Thread(target=pump, args=(remote, local), daemon=True).start()
        pump(local, remote)

    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            threading.Thread(target=join, args=(listener.accept()[0],), daemon=True).start()


def delay(port: int, target: str, target_port: int) -> None:
    """Forwards with every byte held back for half of `DELAY_S` in each direction."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(4096)

        async def pass_on() -> None:
            while True:
                due, data = await held.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                writer.write(data)
                if not data:
                    writer.close()
                    return
                await writer.drain()

        passing = asyncio.create_task(pass_on())
        with contextlib.suppress(OSError):
            while data := await reader.read(64 << 10):
                await held.put((loop.time() + DELAY_S / 2, data))
        await held.put((loop.time(), b""))
        with contextlib.suppress(OSError):
            await passing

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target, target_port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def run() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", port, limit=1 << 20)
        await server.serve_forever()

    asyncio.run(run())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def process(function: str, port: int, *arguments: object) -> Iterator[psutil.Process]:
    """Runs one of these functions (or a command) that listens on a port."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks import tunnel as t; "
    call = f"t.{function}({', '.join(map(repr, (port, *arguments)))})"
    with running([sys.executable, "-c", code + call], port) as found:
        yield found


@contextlib.contextmanager
def running(line: list[str], port: int) -> Iterator[psutil.Process]:
    """Runs a command until the block ends; begins when it listens."""
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                break
            time.sleep(0.05)
        yield psutil.Process(child.pid)
    finally:
        child.kill()
        child.wait()


class Rig:
    """A testbed with the pod that is loaded."""

    def __init__(self, testbed: Any, namespace: Any, scratch: Path) -> None:
        self.testbed, self.namespace = testbed, namespace
        self.user = namespace.user("operator")
        self.scratch = scratch
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import os; "
        code += f"from benchmarks import tunnel as t; t.serve(os.environ['IP'], {PORT})"
        environment = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        from shared_pathways_service.testing.testbed.node_agent.images import COMMAND_IMAGE

        main: dict[str, Any] = {
            "name": "main",
            "image": COMMAND_IMAGE,
            "command": [sys.executable, "-c", code],
        }
        main |= {"env": environment, "ports": [{"containerPort": PORT}]}
        namespace.create("pods", {"metadata": {"name": "load"}, "spec": {"containers": [main]}})
        seen = namespace.wait_for_pod("load", lambda pod: pod["status"].get("phase") == "Running")
        self.pod_ip: str = seen["status"]["podIP"]
        while "listening" not in namespace.log("load"):
            time.sleep(0.1)

    @contextlib.contextmanager
    def forwarder(self, name: str, server: str) -> Iterator[tuple[int, psutil.Process]]:
        """Runs one of `FORWARDERS` towards an API server's URL; gives port and process."""
        port = free_port()
        original = self.testbed.kubeconfig_of(self.user, namespace=self.namespace.name)
        kubeconfig = self.scratch / f"{port}.kubeconfig"
        kubeconfig.write_text(original.read_text().replace(self.testbed.server, server))
        namespace = self.namespace.name
        path = self.namespace.path("pods", f"load/portforward?ports={PORT}")
        if name == "kubectl":
            line = ["kubectl", "--kubeconfig", str(kubeconfig), "-n", namespace]
            started = running([*line, "port-forward", "pod/load", f"{port}:{PORT}"], port)
        elif name == "ours":
            started = process("forward_ours", port, server + path, self.user.token)
        else:
            started = process(f"forward_{name}", port, str(kubeconfig), namespace)
        with started as found:
            yield port, found


CASES: tuple[tuple[str, Work, int], ...] = (
    ("down_1", down, 1),
    ("down_8", down, 8),
    ("up_1", up, 1),
    ("up_8", up, 8),
)


def measure(rig: Rig, names: list[str], total: int, rounds: int) -> dict[str, Any]:
    """Measures every forwarder in turns; returns medians."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    with contextlib.ExitStack() as stack:
        started = {
            name: stack.enter_context(rig.forwarder(name, rig.testbed.server)) for name in names
        }
        for _ in range(rounds):
            for label, work, connections in CASES:
                for name, (port, found) in started.items():
                    rate, cpu, rest = throughput(work, port, total, connections, found)
                    samples[name].setdefault(f"{label}_mb_per_s", []).append(rate)
                    samples[name].setdefault(f"{label}_cpu_s_per_gb", []).append(cpu)
                    bound = (psutil.cpu_count() or 1) / rest * 1e3
                    samples[name].setdefault(f"{label}_bound_mb_per_s", []).append(bound)
            for name, (port, _) in started.items():
                took = round_trips(port)
                samples[name].setdefault("rtt_p50_us", []).append(took[len(took) // 2])
                samples[name].setdefault("rtt_p99_us", []).append(took[len(took) * 99 // 100])
    return {
        name: {label: round(statistics.median(values), 2) for label, values in found.items()}
        for name, found in samples.items()
    }


def measure_delay(rig: Rig, names: list[str], total: int, rounds: int) -> dict[str, float]:
    """Returns MB/s of one connection with `DELAY_S` of round trip in between."""
    samples: dict[str, list[float]] = {}
    api = urlsplit(rig.testbed.server)
    with contextlib.ExitStack() as stack:
        behind, raw = free_port(), free_port()
        stack.enter_context(process("delay", behind, api.hostname, api.port))
        stack.enter_context(process("delay", raw, rig.pod_ip, PORT))
        ports = {"raw_tcp": raw}
        for name in names:
            server = f"https://127.0.0.1:{behind}"
            ports[name] = stack.enter_context(rig.forwarder(name, server))[0]
        for _ in range(rounds):
            for label, work in (("down", down), ("up", up)):
                for name, port in ports.items():
                    rate = throughput(work, port, total, 1, None)[0]
                    samples.setdefault(f"{name}_{label}_mb_per_s", []).append(rate)
    return {label: round(statistics.median(rates), 1) for label, rates in samples.items()}


def measure_memory(rig: Rig) -> dict[str, float]:
    """Returns MB of the relay's process, idle and after a stalled reader."""
    with rig.forwarder("ours", rig.testbed.server) as (port, found), connect(port) as peer:
        idle = found.memory_info().rss / 1e6
        peer.sendall(command("d", 4_000_000_000))
        largest, until = 0.0, time.monotonic() + 5
        while time.monotonic() < until:
            largest = max(largest, found.memory_info().rss / 1e6)
            time.sleep(0.05)
    return {"idle_mb": round(idle, 1), "stalled_mb": round(largest, 1)}


def show(result: Mapping[str, Any]) -> None:
    """Prints the table, and ours beside each other's."""
    table: dict[str, dict[str, float]] = result["forwarders"]
    names = list(table)
    print(f"{'':24}" + "".join(f"{name:>12}" for name in names) + "   ours / the other's")
    for label in table[names[0]]:
        values = [table[name][label] for name in names]
        ours = table.get("ours", {}).get(label)
        ratios = [f"{ours / v:.2f}" for v in values[1:] if ours and v]
        print(f"{label:24}" + "".join(f"{v:12.2f}" for v in values) + "   " + " ".join(ratios))
    print(json.dumps({k: v for k, v in result.items() if k != "forwarders"}, indent=2))


def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    from shared_pathways_service.testing.testbed import Testbed, new_namespace

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=FORWARDERS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = arguments.only or list(FORWARDERS)
    total = arguments.megabytes * 1_000_000
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sps-bench-")))
        testbed = stack.enter_context(Testbed.start(report=print))
        rig = Rig(testbed, stack.enter_context(new_namespace(testbed)), scratch)
        result = {
            "forwarders": measure(rig, names, total, arguments.rounds),
            "delay_50_ms": measure_delay(rig, names, total, arguments.rounds),
            "memory": measure_memory(rig),
        }
    show(result)
    write_result("tunnel", {"megabytes": arguments.megabytes, **result}, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
