"""Rounds of random requests and bytes, each of some examples that hypothesis draws."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import socket
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import hypothesis
from hypothesis import strategies as st
from jaxlib import xla_client

from harness.proxy.programs import compile_options
from harness.proxy.raw import Failed, RawClient
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import core_pb2
from stress.fuzz.client import DEADLINE_S, FuzzClient, mutations, plausible
from stress.fuzz.conversation import Conversation, FuzzError, Step
from stress.fuzz.custom_calls import odd_program
from stress.fuzz.observer import Observer
from stress.fuzz.requests import steps
from stress.fuzz.shardy import DEVICES, odd_sharded_program

__all__ = ["EXAMPLES", "ROUNDS", "Target", "rounds_of", "run_once", "run_sequence"]

#: Examples of a round.
EXAMPLES = 30
_METHODS = {
    "GetVersion": "unary_unary",
    "HostBufferDelete": "unary_unary",
    "HostBufferReadFromDisk": "unary_unary",
    "HostBufferLookup": "unary_stream",
    "HostBufferStore": "stream_unary",
    "IfrtSession": "stream_stream",
}


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


def rounds_of(target: Target) -> dict[str, Callable[[], None]]:
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


def run_once(examples: Callable[[], None], seed: int) -> None:
    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        # No shrinking: a proxy that has ended fails every example.
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.seed(seed)(settings(examples))()
