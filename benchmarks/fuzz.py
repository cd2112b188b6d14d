"""A proxy under random requests: no crash, no hang, no leak, no effect on another session.

    python -m benchmarks.fuzz [--minutes 60] [--seed 1] [--out result.json]

Rounds of four kinds, in turn, against one proxy process: valid and half-valid sequences of
requests; the same with mutated bytes; random bytes to each gRPC method; random bytes to the socket.
Beside them a witness computes in a session of its own and checks every result. A round's seed is
printed when it fails: `--seed` begins with it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import hypothesis
import numpy as np
import psutil
from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from benchmarks.common import write_result
from shared_pathways_service.core.openmetrics import values_of
from shared_pathways_service.protocol import counters, ifrt, proxy_status_pb2
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from tests.processes import ServerProcess
from tests.servers.proxy.raw import (
    DOUBLE,
    F32,
    Failed,
    RawClient,
    compile_options,
    replicated,
    sharded_double,
    single,
    spec,
    split,
)

DEADLINE_S = 120.0
_EXAMPLES = 30
_MODULE = "shared_pathways_service.servers.proxy"
_METHODS = {
    "GetVersion": "unary_unary",
    "HostBufferDelete": "unary_unary",
    "HostBufferReadFromDisk": "unary_unary",
    "HostBufferLookup": "unary_stream",
    "HostBufferStore": "stream_unary",
    "IfrtSession": "stream_stream",
}
_SUM = """
module @sum {
  func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<f32>) {
    %n = stablehlo.add %x, %y : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<f32>
    return %n, %c : tensor<4xf32>, tensor<f32>
  }
}
"""
_DONATING = sharded_double(4, ", tf.aliasing_output = 0 : i32")
_PROGRAMS = (
    (DOUBLE, 1),
    (_SUM, 1),
    (sharded_double(4), 4),
    (_DONATING, 4),
    (sharded_double(8), 8),
    ("module @wrong { func.func public @main() { return } } }", 1),
    ("", 1),
    (DOUBLE, 2),
)


class FuzzError(AssertionError):
    """The proxy did what it never may."""


# ---- one step of a sequence: numbers only, so that hypothesis can shrink them

_SHAPES = ((4,), (8,), (), (0,), (2, 4), (3,), (1 << 20,), (-1,), (1 << 40,), (1,) * 40)
_KINDS = (F32, F32, F32, core_pb2.DTypeProto.KIND_S4, core_pb2.DTypeProto.KIND_BF16, 0, 77, 5)
_DEVICES: tuple[list[int], ...] = (
    [0],
    [1],
    [7],
    [8],
    [-1],
    [0, 1],
    [1, 0],
    [3, 4],
    [0, 0],
    [],
    list(range(4)),
    list(range(8)),
)
_small = st.integers(0, 15)
_picks = st.lists(_small, max_size=4)
Step = tuple[str, int, int, list[int]]


class Conversation:
    """Sends steps in one session.

    Args:
      client: The session.
      hopeful: Whether every request must be answered: nothing waits for what never comes.
    """

    def __init__(self, client: FuzzClient, *, hopeful: bool) -> None:
        self.client = client
        self.hopeful = hopeful
        self.arrays: list[int] = []
        self.programs: list[int] = []
        self.executions: list[int] = []
        self.sent: list[Any] = []
        self._handles = itertools.count(1 << 20)

    # ---- choosing

    def array(self, pick: int) -> int:
        return self.arrays[pick % len(self.arrays)] if self.arrays and pick != 15 else 999_999_999

    def program(self, pick: int) -> int:
        return self.programs[pick % len(self.programs)] if self.programs and pick != 15 else 12345

    def name(self) -> int:
        handle = next(self._handles)
        self.arrays.append(handle)
        return handle

    def sharding(self, pick: int) -> core_pb2.ShardingProto:
        devices = _DEVICES[pick % len(_DEVICES)]
        if len(devices) == 1:
            return single(devices[0])
        return (split, replicated)[pick % 2](devices)

    # ---- sending

    def send(self, kind: str, **fields: Any) -> Any:
        if self.client.ended.is_set():
            raise EOFError
        try:
            pending = self.client.begin(kind, context=len(self.sent) % 7, **fields)
        except (ValueError, TypeError):
            return None  # protobuf itself does not take such a value
        self.sent.append(pending)
        return pending

    def wait(self, pending: Any) -> Any:
        """Returns an answer; None for an error."""
        if pending is None:
            return None
        deadline = time.monotonic() + DEADLINE_S
        while not pending.future.done():
            if self.client.ended.is_set() and not pending.future.done():
                raise EOFError
            if time.monotonic() > deadline:
                raise FuzzError(f"no answer to {pending.kind} within {DEADLINE_S} s")
            with contextlib.suppress(Exception):
                pending.future.exception(timeout=0.2)
        try:
            return pending.result()
        except Failed:
            return None
        except grpc.RpcError as error:
            raise EOFError from error

    def step(self, step: Step) -> None:
        kind, one, two, picks = step
        getattr(self, f"do_{kind}")(one, two, picks)

    def finish(self) -> None:
        """Every request is answered, or at least one that comes after them all."""
        for pending in self.sent if self.hopeful else ():
            self.wait(pending)
        op_id = (1 << 40) + 1
        request = proxy_pb2.IfrtRequest()
        request.request_metadata.op_id = op_id
        request.get_default_device_assignment_request.num_replicas = 1
        request.get_default_device_assignment_request.num_partitions = 1
        self.client.send_unharmed(request.SerializeToString())
        deadline = time.monotonic() + DEADLINE_S
        while op_id not in self.client.answered and not self.client.ended.is_set():
            if time.monotonic() > deadline:
                raise FuzzError(f"the session hangs: {len(self.sent)} requests sent")
            time.sleep(0.002)

    # ---- the kinds

    def store(self, shape: Sequence[int], size: int = 0) -> int:
        buffer = next(self._handles)
        known = min(shape, default=0) >= 0 and np.prod(shape, dtype=object) < 1 << 22
        nbytes = int(np.prod(shape, dtype=object)) * 4 if known else 16
        if size == 14:
            nbytes = max(0, nbytes - 1)
        with contextlib.suppress(grpc.RpcError):
            self.client.store(buffer, bytes(nbytes))
        return buffer

    def do_put(self, one: int, two: int, picks: list[int]) -> None:
        shape = _SHAPES[one % len(_SHAPES)]
        kind = _KINDS[two % len(_KINDS)]
        buffer = 424_242 if two == 15 and not self.hopeful else self.store(shape, two)
        fields: dict[str, Any] = {}
        if len(picks) > 2:
            fields["byte_strides"] = {"strides": [4 * p for p in picks[: len(shape)]]}
        self.send(
            "make_array_from_host_buffer",
            dtype={"kind": kind},
            shape={"dims": shape},
            sharding=self.sharding(picks[0] if picks else one),
            host_buffer_handle=buffer,
            array_handle=self.name(),
            **fields,
        )

    def do_put_shards(self, one: int, two: int, picks: list[int]) -> None:
        shape = _SHAPES[one % len(_SHAPES)]
        item: dict[str, Any] = {
            "array_spec": {
                "dtype": {"kind": F32},
                "shape": {"dims": shape},
                "sharding": self.sharding(two),
            },
            "addressable_shard_indices": [{"indices": [pick]} for pick in picks],
            "host_buffers": [
                {
                    "dtype": {"kind": F32},
                    "shape": {"dims": _SHAPES[pick % len(_SHAPES)]},
                    "host_buffer_handle": self.store((4,)),
                }
                for pick in picks
            ],
        }
        self.send("make_arrays_from_host_buffer_shards", specs=[item], array_handles=[self.name()])

    def do_copy(self, one: int, two: int, picks: list[int]) -> None:
        handles = [self.array(pick) for pick in picks]
        self.send(
            "copy_arrays",
            array_handles=handles,
            device_ids=_DEVICES[one % len(_DEVICES)] if one else [],
            copy_semantics=two % 5,
            memory_kind=("", "", "", "device", "pinned_host", "nowhere")[two % 6],
            result_handles=[self.name() for _ in range(len(handles) - (two == 15))],
        )

    def do_assemble(self, one: int, two: int, picks: list[int]) -> None:
        self.send(
            "assemble_array_from_single_device_arrays",
            shape={"dims": _SHAPES[one % len(_SHAPES)]},
            sharding=self.sharding(two),
            single_device_array_handles=[self.array(pick) for pick in picks],
            copy_semantics=one % 4,
            result_handle=self.name(),
        )

    def do_disassemble(self, one: int, two: int, _picks: list[int]) -> None:
        self.send(
            "disassemble_into_single_device_arrays",
            array_handle=self.array(one),
            result_handles=[self.name() for _ in range((1, 4, 8, 2)[two % 4])],
        )

    def do_shard(self, one: int, two: int, _picks: list[int]) -> None:
        self.send(
            "fully_replicated_shard",
            array_handle=self.array(one),
            copy_semantics=two % 4,
            result_handle=self.name(),
        )

    def do_remap(self, one: int, two: int, picks: list[int]) -> None:
        handles = [self.array(one), self.array(two)]
        specs = [spec(_SHAPES[p % 3], self.sharding(p)) for p in (one, two)]
        numbers = [pick - 1 for pick in picks]
        mapping: dict[str, Any] = {
            "in_array": one % 3,
            "out_array": two % 3,
            "from_start": numbers,
            "from_end": [n + 1 for n in numbers],
            "from_step": [1 - (one == 15)] * len(numbers),
            "to_start": numbers,
            "to_end": [n + 1 + (two == 15) for n in numbers],
            "to_step": [1] * len(numbers),
        }
        self.send(
            "remap_arrays",
            plan={"input_specs": specs, "output_specs": specs, "mappings": [mapping]},
            array_handles=handles,
            copy_semantics=two % 4,
            result_handles=[self.name(), self.name()],
        )

    def do_reshard(self, one: int, two: int, picks: list[int]) -> None:
        self.send(
            ("reshard_arrays", "bitcast_arrays")[one % 2],
            array_handles=[self.array(pick) for pick in picks],
            array_specs=[
                {
                    "dtype": {"kind": _KINDS[one % len(_KINDS)]},
                    "shape": {"dims": _SHAPES[pick % len(_SHAPES)]},
                    "sharding": self.sharding(two + pick),
                }
                for pick in picks[(two == 15) :]
            ],
            copy_semantics=two % 5,
            result_handles=[self.name() for _ in picks],
        )

    def do_errors(self, one: int, two: int, _picks: list[int]) -> None:
        self.send(
            "make_error_arrays",
            error={"code": two, "message": "made"},
            array_specs=[spec(_SHAPES[one % 3], self.sharding(two))],
            array_handles=[self.name()],
        )

    def do_compile(self, one: int, two: int, _picks: list[int]) -> None:
        text, count = _PROGRAMS[one % len(_PROGRAMS)]
        first = (0, 4, 0, 7)[two % 4]
        pending = self.send(
            "compile",
            program={"type_name": "xla::ifrt::XlaProgram", "data": text.encode()},
            compile_options={
                "type_name": "xla::ifrt::XlaCompileOptions",
                "data": compile_options(range(first, first + count)),
            },
        )
        answer = self.wait(pending) if self.hopeful else None
        # Elsewhere the handle is guessed: those of the server are counted from here.
        self.programs.append(answer.loaded_executable_handle if answer else (1 << 63) + 2 * two)

    def do_execute(self, one: int, two: int, picks: list[int]) -> None:
        status = next(self._handles)
        self.executions.append(status)
        self.send(
            "loaded_executable_execute",
            loaded_executable_handle=self.program(one),
            args_handles=[self.array(pick) for pick in picks],
            result_array_handle=[self.name() for _ in range(two % 3)],
            result_status_handle=status if two % 2 else 0,
            execute_options={"fill_status": two > 7, "non_donatable_input_indices": picks[:1]},
        )

    def do_run(self, one: int, two: int, _picks: list[int]) -> None:
        """One that works, mostly."""
        text, count = _PROGRAMS[one % 5]
        devices = list(range(count))
        program = self.wait(
            self.send(
                "compile",
                program={"type_name": "xla::ifrt::XlaProgram", "data": text.encode()},
                compile_options={
                    "type_name": "xla::ifrt::XlaCompileOptions",
                    "data": compile_options(devices),
                },
            )
        )
        if program is None:
            return
        self.programs.append(program.loaded_executable_handle)
        shape = (4,) if count == 1 else (8,)
        arguments = []
        for _ in range(2 if text is _SUM else 1):
            arguments.append(self.name())
            self.send(
                "make_array_from_host_buffer",
                dtype={"kind": F32},
                shape={"dims": shape},
                sharding=single(0) if count == 1 else split(devices),
                host_buffer_handle=self.store(shape),
                array_handle=arguments[-1],
            )
        for _ in range(two):
            self.send(
                "loaded_executable_execute",
                loaded_executable_handle=program.loaded_executable_handle,
                args_handles=arguments,
                result_array_handle=[self.name() for _ in range(2 if text is _SUM else 1)],
            )

    def do_fetch(self, one: int, two: int, picks: list[int]) -> None:
        buffer = next(self._handles)
        fields: dict[str, Any] = {}
        if picks:
            fields["byte_strides"] = {"strides": [4 * (p - 1) for p in picks]}
        pending = self.send(
            "copy_to_host_buffer",
            array_handle=self.array(one),
            host_buffer_handle=buffer,
            **fields,
        )
        if self.hopeful and self.wait(pending) is not None and two != 15:
            with contextlib.suppress(grpc.RpcError):
                self.client.lookup(buffer)
            if two % 2:
                request = proxy_pb2.GrpcHostBufferDeleteRequest(
                    session_id=self.client.session_id, handle=buffer
                )
                with contextlib.suppress(grpc.RpcError):
                    self.client.unary("HostBufferDelete", request)

    def do_ready(self, _one: int, _two: int, picks: list[int]) -> None:
        self.send("check_value_ready", value_handles=[self.array(pick) for pick in picks])

    def do_delete(self, one: int, _two: int, picks: list[int]) -> None:
        handles = [self.array(pick) for pick in (one, *picks)]
        answer = (
            self.wait(self.send("delete_array", array_handle=handles)) if self.hopeful else None
        )
        future = answer.deletion_future_handle if answer else (1 << 63) + one
        self.send("check_future", future_handle=future)

    def do_is_deleted(self, one: int, _two: int, _picks: list[int]) -> None:
        self.send("is_array_deleted", array_handle=self.array(one))

    def do_destruct(self, one: int, _two: int, picks: list[int]) -> None:
        self.send("destruct_array", array_handle=[self.array(pick) for pick in (one, *picks)])

    def do_result(self, one: int, _two: int, _picks: list[int]) -> None:
        handle = self.executions[one % len(self.executions)] if self.executions else one
        self.send("loaded_executable_fetch_execute_result", result_status_handle=handle)

    def do_program(self, one: int, two: int, _picks: list[int]) -> None:
        what = (
            "metadata", "cost_analysis", "human_readable_program_text",
            "is_deleted", "delete", "destruct",
        )[two % 6]  # fmt: skip
        self.send(f"loaded_executable_{what}", loaded_executable_handle=self.program(one))

    def do_layout(self, one: int, two: int, picks: list[int]) -> None:
        self.send(
            "get_default_layout",
            dtype={"kind": _KINDS[one % len(_KINDS)]},
            dims=_SHAPES[two % len(_SHAPES)],
            device_id=picks[0] - 1 if picks else 0,
            memory_kind={"memory_kind": ("device", "", "nowhere")[two % 3]},
        )

    def do_assignment(self, one: int, two: int, _picks: list[int]) -> None:
        self.send("get_default_device_assignment", num_replicas=one - 1, num_partitions=two - 1)


_KINDS_OF_STEP = sorted(name[3:] for name in vars(Conversation) if name.startswith("do_"))
steps = st.lists(
    st.tuples(st.sampled_from(_KINDS_OF_STEP), _small, _small, _picks), min_size=1, max_size=25
)
#: Where, how (0 replaces, 1 inserts, 2 removes, 3 cuts off) and with what.
mutations = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 3), st.integers(0, 255)), max_size=3
)


def mutated(data: bytes, how: Sequence[tuple[int, int, int]]) -> bytes:
    """Returns bytes that are a little wrong."""
    changed = bytearray(data)
    for where, kind, byte in how:
        at = where % (len(changed) + 1)
        if kind == 0 and at < len(changed):
            changed[at] = byte
        elif kind == 1:
            changed.insert(at, byte)
        elif kind == 2:
            del changed[at : at + 1 + byte % 4]
        elif kind == 3:
            del changed[at:]
    return bytes(changed)


def plausible(data: bytes, how: Sequence[tuple[int, int, int]]) -> bytes:
    """Returns bytes that are a little wrong and mostly a request still: others end the session."""
    if how and how[0][2] % 8 == 0:
        return mutated(data, how)
    for attempt in (how, [(where, 0, byte) for where, _, byte in how], how[:1]):
        changed = mutated(data, attempt)
        try:
            proxy_pb2.IfrtRequest.FromString(changed)
        except DecodeError:
            continue
        return changed
    return data


class FuzzClient(RawClient):
    """A session whose requests may be changed on their way."""

    def __init__(self, address: str, change: Callable[[bytes], bytes] | None = None) -> None:
        super().__init__(address)
        self._unharmed = self._requests
        if change is not None:
            self._requests = _Changing(self._unharmed.put, change)  # type: ignore[assignment]

    def send_unharmed(self, data: bytes) -> None:
        self._unharmed.put(data)

    def close(self) -> None:
        self._requests = self._unharmed
        super().close()


@dataclasses.dataclass
class _Changing:
    deliver: Callable[[bytes], None]
    change: Callable[[bytes], bytes]

    def put(self, data: bytes) -> None:
        self.deliver(self.change(data))


# ---- rounds


def run_sequence(address: str, sequence: Sequence[Step]) -> None:
    """Valid and half-valid requests: every one is answered."""
    with FuzzClient(address) as client:
        _run(Conversation(client, hopeful=True), sequence)
        if client.ended.is_set():
            raise FuzzError(f"the session was ended: {client.status()}")


def run_mutated(
    address: str, sequence: Sequence[Step], hows: Sequence[Sequence[tuple[int, int, int]]]
) -> None:
    """The same with some bytes changed: answered, or the session is ended."""
    turns = itertools.cycle(hows or [()])
    with FuzzClient(address, lambda data: plausible(data, next(turns))) as client:
        _run(Conversation(client, hopeful=False), [s for s in sequence if s[0] != "run"])


def _run(requests: Conversation, sequence: Sequence[Step]) -> None:
    with contextlib.suppress(EOFError):
        for step in sequence:
            requests.step(step)
        requests.finish()


def run_methods(address: str, method: str, payloads: Sequence[bytes], metadata: bytes) -> None:
    """Random bytes to a gRPC method: an answer or a status, in time."""
    with grpc.insecure_channel(address) as channel:
        kind = _METHODS[method]
        call: Any = getattr(channel, kind)(f"/{ifrt.SERVICE}/{method}")
        headers = [(ifrt.SESSION_METADATA, metadata), (ifrt.HOST_BUFFER_METADATA, metadata)]
        argument = iter(payloads) if kind.startswith("stream") else b"".join(payloads)
        try:
            answer = call(argument, metadata=headers, timeout=DEADLINE_S)
            if kind.endswith("stream"):
                for _ in answer:
                    pass
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise FuzzError(f"{method} hangs") from error


def run_socket(address: str, payloads: Sequence[bytes]) -> None:
    """Random bytes to the socket, behind HTTP/2's greeting or not."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(DEADLINE_S)
        raw.connect(address.removeprefix("unix:"))
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


def _rounds(address: str) -> dict[str, Callable[[], None]]:
    """Each runs some examples that hypothesis draws."""

    @hypothesis.given(steps)
    def sequences(sequence: list[Step]) -> None:
        run_sequence(address, sequence)

    @hypothesis.given(steps, st.lists(mutations, min_size=1, max_size=8))
    def mutations_(sequence: list[Step], hows: list[list[tuple[int, int, int]]]) -> None:
        run_mutated(address, sequence, hows)

    @hypothesis.given(
        st.sampled_from(sorted(_METHODS)),
        st.lists(st.binary(max_size=200), max_size=4),
        st.binary(),
    )
    def methods(method: str, payloads: list[bytes], metadata: bytes) -> None:
        run_methods(address, method, payloads, metadata)

    @hypothesis.given(st.booleans(), st.lists(st.binary(max_size=300), max_size=4))
    def sockets(greeting: bool, payloads: list[bytes]) -> None:
        run_socket(address, [_GREETING, *payloads] if greeting else payloads)

    return {"sequences": sequences, "mutated": mutations_, "methods": methods, "socket": sockets}


# ---- the witness, and what is looked at


class Witness:
    """A session that computes all the time and checks its results."""

    def __init__(self, address: str) -> None:
        self.checked = 0
        self.slowest_s = 0.0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._client = RawClient(address)
        self._thread = threading.Thread(target=self._compute, name="witness")
        self._thread.start()

    def _compute(self) -> None:
        try:
            one = self._client.compile(DOUBLE, [7])
            all_ = self._client.compile(sharded_double(8), range(8))
            for number in itertools.count():
                if self._stop.is_set():
                    return
                began = time.monotonic()
                for program, shape, sharding in (
                    (one, 4, single(7)), (all_, 8, split(range(8)))
                ):  # fmt: skip
                    values = np.full(shape, number, np.float32)
                    array = self._client.put(values, sharding)
                    (doubled,) = self._client.execute(program, [array])
                    if not np.array_equal(self._client.fetch(doubled), 2 * values):
                        raise FuzzError("the witness got a wrong result")
                    self._client.call("destruct_array", array_handle=[array, doubled])
                self.checked += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001 - told by whoever looks
            self.error = error

    def pause(self) -> None:
        """Ends the computing; the session stays, and holds what `HELD` says."""
        self._stop.set()
        self._thread.join(DEADLINE_S)

    def close(self) -> None:
        self.pause()
        self._client.close()


#: What a proxy tells when only a witness's session is left, which does nothing: two programs, and
#: of each the future that says when it is compiled.
HELD = {
    "open_sessions": 1,
    "open_handles": 4,
    "live_programs": 2,
    "live_arrays": 0,
    "held_back_sessions": 0,
    "host_buffers": 0,
    "host_memory_bytes": 0,
    "device_memory_bytes": 0,
}


def check_nothing_left(address: str, deadline_s: float) -> None:
    """Waits until a proxy holds what a witness holds and nothing else.

    Raises:
      FuzzError: It holds more.
    """
    deadline = time.monotonic() + deadline_s
    while (found := _held(address)) != HELD:
        if time.monotonic() > deadline:
            raise FuzzError(f"sessions that have ended left something: {found}, not {HELD}")
        time.sleep(0.05)


def _held(address: str) -> dict[str, float]:
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(f"/{counters.SERVICE}/{counters.METHOD}")
        answer = proxy_status_pb2.GetCountersResponse.FromString(call(b"", timeout=DEADLINE_S))
    told = values_of(counters.families_of(answer))
    values: dict[str, Any] = {name: told[f"sps_proxy_{name}"] for name in HELD}
    return values | {"device_memory_bytes": sum(values["device_memory_bytes"].values())}


@dataclasses.dataclass(frozen=True)
class Held:
    """What the proxy's process holds."""

    threads: int
    descriptors: int
    resident_mb: float

    @classmethod
    def of(cls, pid: int) -> Held:
        process = psutil.Process(pid)
        return cls(
            process.num_threads(), process.num_fds(), round(process.memory_info().rss / 1e6, 1)
        )


@contextlib.contextmanager
def _proxy() -> Iterator[tuple[ServerProcess, str]]:
    with tempfile.TemporaryDirectory(prefix="sps") as directory:
        flags = [
            f"--server_socket={directory}/s",
            "--virtual_slices=tpuv6e:2x2,tpuv6e:2x2",
            f"--last_requests_file={directory}/last",
            # What half-valid requests ask for must not take the machine's memory.
            f"--host_memory_limit_bytes={256 << 20}",
            f"--device_memory_limit_bytes={256 << 20}",
            "--max_handles=100000",
        ]
        with ServerProcess(_MODULE, flags) as proxy:
            assert proxy.ready is not None, "\n".join(proxy.lines)
            yield proxy, f"unix:{directory}/s"


def fuzz(seconds: float, seed: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Runs rounds for so long; returns what was done and seen.

    Raises:
      FuzzError: With the round's seed, when the proxy did what it never may.
    """
    done: Counter[str] = Counter()
    held: list[Held] = []
    numbers = random.Random(seed)
    with _proxy() as (proxy, address), contextlib.ExitStack() as stack:
        witness = Witness(address)
        stack.callback(witness.close)
        names = itertools.cycle(("sequences", "mutated", "methods", "socket"))
        began = time.monotonic()
        while time.monotonic() - began < seconds or len(done) < 4:
            name = next(names)
            examples = _rounds(address)[name]
            round_seed = numbers.getrandbits(32)
            try:
                _once(examples, round_seed)
                _check(proxy, witness)
            except Exception as error:
                tail = "\n".join(proxy.lines[-30:])
                example = "\n".join(getattr(error, "__notes__", ()))
                raise FuzzError(
                    f"{name}, seed {round_seed}: {error!r}\n{example}\n{tail}"
                ) from error
            done[name] += _EXAMPLES
            if name == "socket":
                held.append(_settled(proxy))
                tell(f"{time.monotonic() - began:6.0f} s {dict(done)} {held[-1]}")
        witness.pause()
        check_nothing_left(address, DEADLINE_S)
        witness.close()
        if proxy.stop() != 0:
            raise FuzzError("the proxy did not end well:\n" + "\n".join(proxy.lines[-30:]))
        _check_growth(held)
    return {
        "seconds": round(time.monotonic() - began),
        "seed": seed,
        "examples": dict(done),
        "witness": {"checked": witness.checked, "slowest_s": round(witness.slowest_s, 2)},
        "held_at_first": dataclasses.asdict(held[0]),
        "held_at_last": dataclasses.asdict(held[-1]),
        "held_at_most": {
            field.name: max(getattr(h, field.name) for h in held)
            for field in dataclasses.fields(Held)
        },
    }


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


def _check(proxy: ServerProcess, witness: Witness) -> None:
    if not psutil.pid_exists(proxy.pid) or (
        psutil.Process(proxy.pid).status() == psutil.STATUS_ZOMBIE
    ):
        raise FuzzError(f"the proxy ended with {proxy.wait()}")
    if witness.error is not None:
        raise FuzzError(f"the witness failed: {witness.error!r}")
    seen, deadline = witness.checked, time.monotonic() + DEADLINE_S
    while witness.checked == seen and witness.error is None:
        if time.monotonic() > deadline:
            raise FuzzError("the witness hangs")
        time.sleep(0.005)


def _settled(proxy: ServerProcess) -> Held:
    """Waits until only the witness's session is there, then looks."""
    deadline = time.monotonic() + DEADLINE_S
    while _open_sessions(proxy) > 1:
        if time.monotonic() > deadline:
            raise FuzzError("sessions outlive their clients")
        time.sleep(0.02)
    return Held.of(proxy.pid)


def _open_sessions(proxy: ServerProcess) -> int:
    lines = list(proxy.lines)
    begun = sum("Session begins" in line for line in lines)
    return begun - sum("Session ended" in line for line in lines)


def _check_growth(held: Sequence[Held]) -> None:
    """Threads and descriptors stay; memory may still find its level in the first third."""
    if len(held) < 6:
        return
    early = held[len(held) // 3]
    last = held[-1]
    if last.descriptors > early.descriptors + 20:
        raise FuzzError(f"descriptors grow: {early} {last}")
    if last.threads > early.threads + 40:
        raise FuzzError(f"threads grow: {early} {last}")
    if last.resident_mb > 1.3 * early.resident_mb + 100:
        raise FuzzError(f"memory grows: {early} {last}")


def main() -> int:
    """Parses the arguments, runs, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = fuzz(60 * arguments.minutes, arguments.seed, lambda line: print(line, flush=True))
    print(result)
    write_result("fuzz", result, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
