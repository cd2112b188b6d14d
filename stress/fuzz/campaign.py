"""Rounds of random requests against one proxy after another, and what they find."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import hypothesis
import psutil
from hypothesis import strategies as st
from jaxlib import xla_client

from harness.processes import ServerProcess
from harness.proxy.raw import Failed, RawClient, compile_options
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from stress.fuzz.custom_calls import odd_program
from stress.fuzz.observer import Observer
from stress.fuzz.requests import (
    DEADLINE_S,
    Conversation,
    FuzzClient,
    FuzzError,
    Step,
    mutations,
    plausible,
    steps,
)
from stress.fuzz.shardy import DEVICES, odd_sharded_program
from stress.fuzz.witness import Witness, check_nothing_left, counters_of
from stress.growth import Growth, Held, growth

_EXAMPLES = 30
_REST_S = 60.0
_MODULE = "stress.fuzz.proxy"
_METHODS = {
    "GetVersion": "unary_unary",
    "HostBufferDelete": "unary_unary",
    "HostBufferReadFromDisk": "unary_unary",
    "HostBufferLookup": "unary_stream",
    "HostBufferStore": "stream_unary",
    "IfrtSession": "stream_stream",
}
#: Of requests.
KINDS = {
    field.name.removesuffix("_request")
    for field in proxy_pb2.IfrtRequest.DESCRIPTOR.oneofs_by_name["request"].fields
}
#: What a process may hold more in the last quarter of the samples than in the first. Memory: each
#: example has a session of its own, most compile programs, and glibc gives back little of what it
#: took for the largest; threads: of uploads and downloads, which end only with the proxy (256).
_ALLOWED = Held(threads=40, descriptors=0, resident_mb=100.0)


# ---- rounds


@dataclasses.dataclass(frozen=True)
class Target:
    """A proxy.

    Attributes:
      address: Where it serves.
      shared: Where it takes large buffers.
      observer: Looks at it when it does not answer.
      deadline_s: For each answer.
    """

    address: str
    shared: Path
    observer: Observer
    deadline_s: float = DEADLINE_S


def run_sequence(
    target: Target, sequence: Sequence[Step], version: int, *, broken_off: bool = False
) -> None:
    """Valid and half-valid requests: every one is answered, unless the session is broken off."""
    with contextlib.ExitStack() as undo, target.observer.explaining():
        client = undo.enter_context(_client(target, version=version))
        requests = Conversation(client, hopeful=True, deadline_s=target.deadline_s)
        with contextlib.suppress(EOFError):
            for step in sequence:
                requests.step(step)
            if not broken_off:
                requests.finish()
        if client.ended.is_set():
            raise FuzzError(f"the session was ended: {client.status()}")


def run_several(target: Target, sessions: Sequence[tuple[list[Step], int, bool]]) -> None:
    """Sessions at the same time: each an own sequence and version, broken off or not."""
    with futures.ThreadPoolExecutor(len(sessions)) as pool:
        running = [
            pool.submit(run_sequence, target, sequence, version, broken_off=broken_off)
            for sequence, version, broken_off in sessions
        ]
    for future in running:
        future.result()


def run_mutated(
    target: Target, sequence: Sequence[Step], hows: Sequence[Sequence[tuple[int, int, int]]]
) -> None:
    """The same with some bytes changed: answered, or the session is ended."""
    turns = itertools.cycle(hows or [()])
    with contextlib.ExitStack() as undo, target.observer.explaining():
        client = undo.enter_context(_client(target, lambda data: plausible(data, next(turns))))
        requests = Conversation(client, hopeful=False, deadline_s=target.deadline_s)
        with contextlib.suppress(EOFError):
            for step in sequence:
                # (`run` waits for its answers, which changed requests need not have.)
                if step[0] != "run":
                    requests.step(step)
            requests.finish()


def run_custom_calls(target: Target, seed: int) -> None:
    """Programs with custom calls, right ones and others: each runs or is refused."""
    draw = random.Random(seed)
    with RawClient(target.address) as client, target.observer.explaining():
        for _ in range(3):
            program, results = odd_program(draw)
            devices = draw.choice(([0], [0], [0, 1], range(4)))
            if draw.random() < 0.5:
                program, results, devices = odd_sharded_program(draw), 1, range(DEVICES)
            with contextlib.suppress(Failed):
                handle = _compile(client, program, devices, by_shardy=draw.random() < 0.8)
                client.ready(*client.execute(handle, [], results))


def _compile(client: RawClient, program: str, devices: Sequence[int], *, by_shardy: bool) -> int:
    message = core_pb2.XlaCompileOptionsProto.FromString(compile_options(devices))
    options = xla_client.CompileOptions.ParseFromString(message.compile_options)
    options.executable_build_options.use_shardy_partitioner = by_shardy
    message.compile_options = options.SerializeAsString()
    handle: int = client.call(
        "compile",
        program={"type_name": "xla::ifrt::XlaProgram", "data": program.encode()},
        compile_options={
            "type_name": "xla::ifrt::XlaCompileOptions",
            "data": message.SerializeToString(),
        },
    ).loaded_executable_handle
    return handle


def _client(target: Target, *change: Callable[[bytes], bytes], **arguments: Any) -> FuzzClient:
    return FuzzClient(
        target.address, *change, shared=target.shared, deadline_s=target.deadline_s, **arguments
    )


def run_methods(target: Target, method: str, payloads: Sequence[bytes], metadata: bytes) -> None:
    """Random bytes to a gRPC method: an answer or a status, in time."""
    with grpc.insecure_channel(target.address) as channel, target.observer.explaining():
        kind = _METHODS[method]
        call: Any = getattr(channel, kind)(f"/{ifrt.SERVICE}/{method}")
        headers = [(ifrt.SESSION_METADATA, metadata), (ifrt.HOST_BUFFER_METADATA, metadata)]
        argument = iter(payloads) if kind.startswith("stream") else b"".join(payloads)
        try:
            answer = call(argument, metadata=headers, timeout=target.deadline_s)
            if kind.endswith("stream"):
                for _ in answer:
                    pass
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise FuzzError(f"{method} hangs") from error


def run_socket(target: Target, payloads: Sequence[bytes]) -> None:
    """Random bytes to the socket, behind HTTP/2's greeting or not."""
    with socket.socket(socket.AF_UNIX) as raw, target.observer.explaining():
        raw.settimeout(target.deadline_s)
        raw.connect(target.address.removeprefix("unix:"))
        with contextlib.suppress(ConnectionError):
            for payload in payloads:
                raw.sendall(payload)
            raw.shutdown(socket.SHUT_WR)
            try:
                while raw.recv(65536):
                    pass
            except TimeoutError as error:
                raise FuzzError("a connection of random bytes is not closed") from error


_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


_versions = st.integers(ifrt.PROTOCOL_MIN, ifrt.PROTOCOL_MAX)


def _rounds(target: Target) -> dict[str, Callable[[], None]]:
    """Each runs some examples that hypothesis draws."""

    @hypothesis.given(steps, _versions)
    def sequences(sequence: list[Step], version: int) -> None:
        run_sequence(target, sequence, version)

    @hypothesis.given(st.lists(st.tuples(steps, _versions, st.booleans()), min_size=2, max_size=4))
    def several(sessions: list[tuple[list[Step], int, bool]]) -> None:
        run_several(target, sessions)

    @hypothesis.given(steps, st.lists(mutations, min_size=1, max_size=8))
    def mutated(sequence: list[Step], hows: list[list[tuple[int, int, int]]]) -> None:
        run_mutated(target, sequence, hows)

    @hypothesis.given(
        st.sampled_from(sorted(_METHODS)),
        st.lists(st.binary(max_size=200), max_size=4),
        st.binary(),
    )
    def methods(method: str, payloads: list[bytes], metadata: bytes) -> None:
        run_methods(target, method, payloads, metadata)

    @hypothesis.given(st.booleans(), st.lists(st.binary(max_size=300), max_size=4))
    def sockets(greeting: bool, payloads: list[bytes]) -> None:
        run_socket(target, [_GREETING, *payloads] if greeting else payloads)

    @hypothesis.given(st.integers(0, (1 << 32) - 1))
    def custom_calls(seed: int) -> None:
        run_custom_calls(target, seed)

    return {
        "sequences": sequences,
        "several": several,
        "mutated": mutated,
        "methods": methods,
        "socket": sockets,
        "custom_calls": custom_calls,
    }


ROUNDS = ("sequences", "several", "mutated", "methods", "socket", "custom_calls")


def _once(examples: Callable[[], None], seed: int) -> None:
    settings = hypothesis.settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        # No shrinking: a proxy that has ended fails every example.
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.seed(seed)(settings(examples))()


# ---- the run


class Campaign:
    """Rounds against one proxy after the other: another one after each finding.

    Args:
      seed: Of the rounds' seeds.
      tell: Called with lines for whoever waits.
    """

    def __init__(self, seed: int, tell: Callable[[str], None]) -> None:
        self.seed = seed
        self.tell = tell
        self.began = time.monotonic()
        self.done: Counter[str] = Counter()
        self.findings: list[dict[str, Any]] = []
        self.requests: Counter[str] = Counter()
        self.checked = 0
        self.slowest_s = 0.0
        # Of each proxy.
        self.samples: list[list[tuple[float, Held]]] = []
        self._seeds = random.Random(seed)
        self._looks: list[dict[str, Any]] = []

    def found(self, error: FuzzError) -> None:
        """Keeps what `run` or `round` raised, with what the proxy was seen to do at that time."""
        self.findings.append({"what": str(error).splitlines(), "proxy": self._looks})
        self.tell(f"FOUND {error}")

    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def run(self, seconds: float, after_rest: Callable[[], None] = lambda: None) -> None:
        """Runs rounds of every kind until so many seconds have passed since the beginning.

        Args:
          seconds: Each kind has one round at least.
          after_rest: Called whenever all came to rest.

        Raises:
          FuzzError: The proxy did what it never may.
        """
        self.samples.append([])
        with started_proxy() as (proxy, target), contextlib.ExitStack() as stack:
            witness = Witness(target.address)
            stack.callback(witness.close)
            rested = self.passed_s()
            try:
                for name in itertools.cycle(ROUNDS):
                    self.round(name, self._seeds.getrandbits(32), proxy, target, witness)
                    over = self.passed_s() >= seconds and name == ROUNDS[-1]
                    if over or self.passed_s() >= rested + _REST_S:
                        self._rest(proxy, target, witness)
                        after_rest()
                        if over:
                            break
                        witness.resume()
                        rested = self.passed_s()
            finally:
                self.checked += witness.checked
                self.slowest_s = max(self.slowest_s, witness.slowest_s)
            for kind, count in counters_of(target.address)["sps_proxy_requests_total"].items():
                self.requests[kind] += count
            witness.close()
            if proxy.stop() != 0:
                raise FuzzError("the proxy did not end well:\n" + _tail(proxy))
        grown = {name: g for name, g in self.growth(-1).items() if not g.flat}
        if grown:
            raise FuzzError(f"what the proxy holds grows: {grown}")

    def round(
        self, name: str, seed: int, proxy: ServerProcess, target: Target, witness: Witness
    ) -> None:
        """Runs one round, and looks whether all is well."""
        self._looks = target.observer.looks
        try:
            _once(_rounds(target)[name], seed)
            if psutil.Process(proxy.pid).status() == psutil.STATUS_ZOMBIE:
                raise FuzzError(f"the proxy ended with {proxy.wait()}")
            with target.observer.explaining():
                witness.check()
        except Exception as error:
            example = "\n".join(getattr(error, "__notes__", ()))
            raise FuzzError(
                f"--round {name} --seed {seed}: {error!r}\n{example}\n{_tail(proxy)}"
            ) from error
        self.done[name] += _EXAMPLES

    def _rest(self, proxy: ServerProcess, target: Target, witness: Witness) -> None:
        with target.observer.explaining():
            witness.pause()
            check_nothing_left(target.address, target.deadline_s)
        held = Held.of(proxy.pid)
        self.samples[-1].append((round(self.passed_s(), 1), held))
        self.tell(f"{self.passed_s():6.0f} s {dict(self.done)} {held}")

    def growth(self, proxy: int) -> dict[str, Growth]:
        """Compares what a proxy held; nothing where there are too few samples to tell."""
        samples = [held for _, held in self.samples[proxy]]
        if len(samples) < 8:
            return {}
        return {
            field.name: growth(
                [getattr(held, field.name) for held in samples], getattr(_ALLOWED, field.name)
            )
            for field in dataclasses.fields(Held)
        }

    def result(self) -> dict[str, Any]:
        """Returns what was done and seen."""
        return {
            "seconds": round(self.passed_s()),
            "seed": self.seed,
            "findings": self.findings,
            "examples": dict(self.done),
            "requests": dict(sorted(self.requests.items())),
            "kinds_never_sent": sorted(KINDS - set(self.requests)),
            "witness": {"checked": self.checked, "slowest_s": round(self.slowest_s, 2)},
            "proxies": [
                {
                    "growth": {k: g.to_json() for k, g in self.growth(index).items()},
                    "samples": [{"s": at, **dataclasses.asdict(held)} for at, held in samples],
                }
                for index, samples in enumerate(self.samples)
            ],
        }


@contextlib.contextmanager
def started_proxy() -> Iterator[tuple[ServerProcess, Target]]:
    """Runs a proxy of two slices, whose files go with it."""
    with tempfile.TemporaryDirectory(prefix="sps") as directory:
        shared = Path(directory, "shared")
        shared.mkdir()
        address, stacks = f"unix:{directory}/s", Path(directory, "stacks")
        flags = [
            str(stacks),
            f"--server_socket={directory}/s",
            "--virtual_slices=tpuv6e:2x2,tpuv6e:2x2",
            f"--last_requests_file={directory}/last",
            f"--large_transfer_dir={shared}",
            f"--parent_pid={os.getpid()}",
            # What half-valid requests ask for must not take the machine's memory.
            f"--host_memory_limit_bytes={256 << 20}",
            f"--device_memory_limit_bytes={256 << 20}",
            "--max_handles=100000",
        ]
        with ServerProcess(_MODULE, flags) as proxy:
            assert proxy.ready is not None, _tail(proxy)
            yield proxy, Target(address, shared, Observer(proxy.pid, address, stacks))


def _tail(proxy: ServerProcess) -> str:
    return "\n".join(proxy.lines[-30:])
