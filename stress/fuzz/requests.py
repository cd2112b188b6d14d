"""The requests that `stress.fuzz` makes: valid, half-valid, and with changed bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import strategies as st
from jaxlib import xla_client

from harness.proxy.raw import (
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
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from stress.fuzz.shardings import delimited, field, hlo_sharding, odd_op_sharding

DEADLINE_S = 120.0
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


#: Options by name that a client may send along: XLA's own, some with a value of a wrong type, and
#: those that ended the process once.
_OVERRIDES: tuple[tuple[str, Any], ...] = (
    ("xla_cpu_enable_fast_math", True),
    ("xla_unsupported_crash_on_hlo_pass_noop_change", True),
    ("xla_unsupported_crash_on_hlo_pass_silent_hlo_change", True),
    ("xla_backend_optimization_level", 9),
    ("xla_backend_optimization_level", "high"),
    ("xla_disable_all_hlo_passes", True),
    ("xla_force_host_platform_device_count", -1),
    ("xla_llvm_disable_expensive_passes", True),
    ("xla_embed_ir_in_executable", True),
    ("xla_no_such_option", 1),
    ("", ""),
)
_NUMBERS = (0, 1, 2, 7, 8, 99, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 7)


def odd_options(devices: Sequence[int], picks: Sequence[int]) -> bytes:
    """Returns compile options, each pick but the first changing a number in them or naming one."""
    if len(picks) < 2:
        return compile_options(devices)
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options(devices))
    build = b""
    for first, second in itertools.pairwise(picks):
        if first == 15:
            name, value = _OVERRIDES[second % len(_OVERRIDES)]
            parsed = xla_client.CompileOptions.ParseFromString(options.compile_options)
            parsed.env_option_overrides = [*parsed.env_option_overrides, (name, value)]
            options.compile_options = parsed.SerializeAsString()
        else:
            # Numbers of xla.ExecutableBuildOptionsProto: the last one counts.
            number = 1 + (first + 3 * second) % 26
            build += (
                field(number, _NUMBERS[second % len(_NUMBERS)])
                if first % 4
                else _of_another_type(number, second)
            )
    if build:
        options.compile_options += delimited(3, build)
    return options.SerializeToString()


def _of_another_type(number: int, pick: int) -> bytes:
    """Returns a field as text, as a message, or in four or eight bytes, whatever it should be."""
    value = _NUMBERS[pick % len(_NUMBERS)]
    return (
        delimited(number, b"text"),
        delimited(number, field(1 + pick, value)),
        delimited(number, b"\xff\xfe"),
        bytes([(number << 3 | 5) & 0x7F | 0x80, number >> 4]) + bytes([pick] * 4),
        bytes([(number << 3 | 1) & 0x7F | 0x80, number >> 4]) + bytes([pick] * 8),
    )[pick % 5]


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
#: Sixteen, of bytes.
_STRIDES = (
    0, 1, 4, -4, 8, -8, 16, -12, 4096, -4096,
    1 << 31, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
_small = st.integers(0, 15)
_picks = st.lists(_small, max_size=4)
Step = tuple[str, int, int, list[int]]


class Conversation:
    """Sends steps in one session.

    Args:
      client: The session.
      hopeful: Whether every request must be answered: nothing waits for what never comes.
      deadline_s: For each answer.
    """

    def __init__(
        self, client: FuzzClient, *, hopeful: bool, deadline_s: float = DEADLINE_S
    ) -> None:
        self.client = client
        self.hopeful = hopeful
        self.deadline_s = deadline_s
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
        if pick > 12:
            return self.odd_sharding(random.Random(16 * len(self.sent) + pick))
        devices = _DEVICES[pick % len(_DEVICES)]
        if len(devices) == 1:
            return single(devices[0])
        return (split, replicated)[pick % 2](devices)

    def odd_sharding(self, draw: random.Random) -> core_pb2.ShardingProto:
        devices = draw.choice(([0, 1], [0, 1, 2], list(range(4)), list(range(8)), [2, 1], [5]))
        # (One in ten is of another number of devices.)
        count = draw.choice((1, 2, 8)) if draw.random() < 0.1 else len(devices)
        return hlo_sharding(odd_op_sharding(draw, count), devices)

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
        deadline = time.monotonic() + self.deadline_s
        while not pending.future.done():
            if self.client.ended.is_set() and not pending.future.done():
                raise EOFError
            if time.monotonic() > deadline:
                raise FuzzError(f"no answer to {pending.kind} within {self.deadline_s:g} s")
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
        deadline = time.monotonic() + self.deadline_s
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
            strides = [_STRIDES[p] if two % 4 == 3 else 4 * p for p in picks[: len(shape)]]
            fields["byte_strides"] = {"strides": strides}
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

    def do_tiles(self, one: int, two: int, picks: list[int]) -> None:
        """An array in tiles, what is made of it, and its values."""
        draw = random.Random(repr((one, two, picks)))
        shape = draw.choice(((8,), (8, 8), (4, 4, 2), (2, 3, 5), (16, 1), (0, 8), ()))
        strides: dict[str, Any] = {}
        if one == 15:
            strides["byte_strides"] = {"strides": [draw.choice(_STRIDES) for _ in shape]}
        array = self.name()
        made = self.send(
            "make_array_from_host_buffer",
            dtype={"kind": F32},
            shape={"dims": shape},
            sharding=self.odd_sharding(draw),
            host_buffer_handle=self.store(shape),
            array_handle=array,
            **strides,
        )
        if self.hopeful and self.wait(made) is None:
            return
        if two % 2:
            kind = draw.choice(("reshard_arrays", "bitcast_arrays"))
            target = {
                "dtype": {"kind": F32},
                "shape": {"dims": shape},
                "sharding": self.odd_sharding(draw),
            }
            other = self.name()
            semantics = draw.randrange(3)
            self.send(
                kind,
                array_handles=[array],
                array_specs=[target],
                copy_semantics=semantics,
                result_handles=[other],
            )
            array = other if draw.random() < 0.5 else array
        count = draw.choice((1, 2, 4, 8))
        self.send(
            "disassemble_into_single_device_arrays",
            array_handle=array,
            result_handles=[self.name() for _ in range(count)],
        )
        buffer = next(self._handles)
        fetched = self.send("copy_to_host_buffer", array_handle=array, host_buffer_handle=buffer)
        if self.hopeful and self.wait(fetched) is not None:
            with contextlib.suppress(grpc.RpcError):
                self.client.lookup(buffer)

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
        plan: dict[str, Any] = {"input_specs": specs, "output_specs": specs}
        if two % 3:
            plan["mappings"] = [mapping]
        if two % 2:
            plan["input_devices_for_output"] = [
                {
                    "out_array": (pick - 1) % 4 - (one == 15),
                    "input_devices": [
                        {
                            "in_array": (one + pick) % 3,
                            "device_list": {"device_ids": _DEVICES[pick % len(_DEVICES)]},
                        }
                    ],
                }
                for pick in picks
            ]
        self.send(
            "remap_arrays",
            plan=plan,
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

    def do_compile(self, one: int, two: int, picks: list[int]) -> None:
        text, count = _PROGRAMS[one % len(_PROGRAMS)]
        first = (0, 4, 0, 7)[two % 4]
        pending = self.send(
            "compile",
            program={"type_name": "xla::ifrt::XlaProgram", "data": text.encode()},
            compile_options={
                "type_name": "xla::ifrt::XlaCompileOptions",
                "data": odd_options(range(first, first + count), picks),
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
            strides = [_STRIDES[p] if one % 4 == 3 else 4 * (p - 1) for p in picks]
            fields["byte_strides"] = {"strides": strides}
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

    def do_unserved(self, one: int, two: int, _picks: list[int]) -> None:
        kind, field = (
            ("init", ""),
            ("loaded_host_callback_poll", "loaded_host_callback_handle"),
            ("loaded_host_callback_return", "host_callback_execution_handle"),
            ("loaded_executable_mpmd_metadata", "mpmd_loaded_executable_handle"),
            ("loaded_executable_mpmd_cost_analysis", "loaded_executable_handle"),
        )[one % 5]
        self.send(kind, **({field: self.program(two)} if field else {}))

    def do_from_disk(self, one: int, two: int, _picks: list[int]) -> None:
        """A buffer in the shared directory: the file may be none, or another than is told."""
        buffer = next(self._handles)
        directory = self.client.directory
        if directory is not None:
            # (It went with the session, if that has ended.)
            with contextlib.suppress(FileNotFoundError):
                _leave(directory / f"lt_{buffer}", one)
        header = proxy_pb2.GrpcHostBufferStoreMetadata(
            session_id=self.client.session_id + (two == 15),
            handle=buffer,
            buffer_size=16 if two < 12 else (0, 15, 1 << 40, 17)[two - 12],
        )
        with contextlib.suppress(grpc.RpcError):
            self.client.unary(
                "HostBufferReadFromDisk",
                proxy_pb2.GrpcHostBufferReadFromDiskRequest(metadata=header),
            )
        if two != 15:  # (of another session's id nothing comes, and the array waits for ever)
            self.send(
                "make_array_from_host_buffer",
                dtype={"kind": F32},
                shape={"dims": (4,)},
                sharding=self.sharding(two),
                host_buffer_handle=buffer,
                array_handle=self.name(),
            )

    def do_upload(self, one: int, two: int, _picks: list[int]) -> None:
        """An upload longer or shorter than told, or one that nobody uses."""
        size = (0, 15, 16, 17, 1 << 16, 1 << 40, -1, 16)[one % 8]
        with contextlib.suppress(grpc.RpcError, ValueError):
            self.client.store(next(self._handles), bytes(16), size=size, chunk=1 + two)

    def do_download(self, one: int, _two: int, _picks: list[int]) -> None:
        """A fetch that is broken off: its client goes before the buffer is there, or amid it."""
        if not self.hopeful:
            return
        buffer = next(self._handles)
        request = proxy_pb2.GrpcHostBufferLookupRequest(
            session_id=self.client.session_id, handle=buffer
        )
        method: Any = self.client.channel.unary_stream(f"/{ifrt.SERVICE}/HostBufferLookup")
        call = method(request.SerializeToString(), timeout=DEADLINE_S)
        pending = self.send(
            "copy_to_host_buffer", array_handle=self.array(one), host_buffer_handle=buffer
        )
        if one % 2:
            self.wait(pending)
        call.cancel()

    def do_assignment(self, one: int, two: int, _picks: list[int]) -> None:
        self.send("get_default_device_assignment", num_replicas=one - 1, num_partitions=two - 1)


def _leave(path: Path, how: int) -> None:
    """Leaves what a proxy finds where it looks for a file of 16 bytes."""
    if how % 8 == 1:
        path.mkdir()
    elif how % 8 == 2:
        path.symlink_to("/dev/zero")
    elif how % 8 == 3:
        os.mkfifo(path)
    elif how % 8 == 4:
        path.symlink_to(path)
    elif how % 8:
        path.write_bytes(bytes(16))


_KINDS_OF_STEP = sorted(name[3:] for name in vars(Conversation) if name.startswith("do_"))
steps = st.lists(
    st.tuples(st.sampled_from(_KINDS_OF_STEP), _small, _small, _picks), min_size=1, max_size=25
)
#: Where, how (0 replaces, 1 inserts, 2 removes, 3 cuts off) and with what.
mutations = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 400), st.integers(0, 10_000)),
        st.integers(0, 3),
        st.integers(0, 255),
    ),
    max_size=3,
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
    """A session whose requests may be changed on their way.

    Args:
      address: Of the proxy.
      change: Applied to each request but the first.
      version: Of the protocol.
      shared: Where the proxy takes large buffers; the session gets a directory of its own there.
      deadline_s: For the answer to the first request.
    """

    def __init__(
        self,
        address: str,
        change: Callable[[bytes], bytes] | None = None,
        *,
        version: int = ifrt.PROTOCOL_MAX,
        shared: Path | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.directory = None if shared is None else Path(tempfile.mkdtemp(dir=shared))
        named = {"sps_transfer_dir": self.directory.name.encode()} if self.directory else None
        super().__init__(address, version=version, initialization_data=named, send_init=False)
        self._unharmed = self._requests
        try:
            self.session_id = self.begin("init").result(deadline_s).session_id
        except BaseException:
            self.close()
            raise
        if change is not None:
            self._requests = _Changing(self._unharmed.put, change)  # type: ignore[assignment]

    def send_unharmed(self, data: bytes) -> None:
        self._unharmed.put(data)

    def close(self) -> None:
        self._requests = self._unharmed
        super().close()
        if self.directory is not None:
            # (The proxy removes files there at the same time.)
            shutil.rmtree(self.directory, ignore_errors=True)


@dataclasses.dataclass
class _Changing:
    deliver: Callable[[bytes], None]
    change: Callable[[bytes], bytes]

    def put(self, data: bytes) -> None:
        self.deliver(self.change(data))
