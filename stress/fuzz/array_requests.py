"""Requests that make arrays, of buffers or of other arrays."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import grpc

from harness.proxy.raw import F32, spec
from stress.fuzz.conversation import Conversation, request
from stress.fuzz.odd_values import DEVICES, DTYPES, SHAPES, STRIDES


@request
def _put(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    shape = SHAPES[one % len(SHAPES)]
    kind = DTYPES[two % len(DTYPES)]
    buffer = 424_242 if two == 15 and not talk.hopeful else talk.store(shape, two)
    fields: dict[str, Any] = {}
    if len(picks) > 2:
        strides = [STRIDES[p] if two % 4 == 3 else 4 * p for p in picks[: len(shape)]]
        fields["byte_strides"] = {"strides": strides}
    talk.send(
        "make_array_from_host_buffer",
        dtype={"kind": kind},
        shape={"dims": shape},
        sharding=talk.sharding(picks[0] if picks else one),
        host_buffer_handle=buffer,
        array_handle=talk.name(),
        **fields,
    )


@request
def _put_shards(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    shape = SHAPES[one % len(SHAPES)]
    item: dict[str, Any] = {
        "array_spec": {
            "dtype": {"kind": F32},
            "shape": {"dims": shape},
            "sharding": talk.sharding(two),
        },
        "addressable_shard_indices": [{"indices": [pick]} for pick in picks],
        "host_buffers": [
            {
                "dtype": {"kind": F32},
                "shape": {"dims": SHAPES[pick % len(SHAPES)]},
                "host_buffer_handle": talk.store((4,)),
            }
            for pick in picks
        ],
    }
    talk.send("make_arrays_from_host_buffer_shards", specs=[item], array_handles=[talk.name()])


@request
def _tiles(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    """An array in tiles, requests on it, and its values."""
    draw = random.Random(repr((one, two, picks)))
    shape = draw.choice(((8,), (8, 8), (4, 4, 2), (2, 3, 5), (16, 1), (0, 8), ()))
    strides: dict[str, Any] = {}
    if one == 15:
        strides["byte_strides"] = {"strides": [draw.choice(STRIDES) for _ in shape]}
    array = talk.name()
    made = talk.send(
        "make_array_from_host_buffer",
        dtype={"kind": F32},
        shape={"dims": shape},
        sharding=talk.odd_sharding(draw),
        host_buffer_handle=talk.store(shape),
        array_handle=array,
        **strides,
    )
    if talk.hopeful and talk.wait(made) is None:
        return
    if two % 2:
        kind = draw.choice(("reshard_arrays", "bitcast_arrays"))
        target = {
            "dtype": {"kind": F32},
            "shape": {"dims": shape},
            "sharding": talk.odd_sharding(draw),
        }
        other = talk.name()
        semantics = draw.randrange(3)
        talk.send(
            kind,
            array_handles=[array],
            array_specs=[target],
            copy_semantics=semantics,
            result_handles=[other],
        )
        array = other if draw.random() < 0.5 else array
    count = draw.choice((1, 2, 4, 8))
    talk.send(
        "disassemble_into_single_device_arrays",
        array_handle=array,
        result_handles=[talk.name() for _ in range(count)],
    )
    buffer = talk.new_handle()
    fetched = talk.send("copy_to_host_buffer", array_handle=array, host_buffer_handle=buffer)
    if talk.hopeful and talk.wait(fetched) is not None:
        with contextlib.suppress(grpc.RpcError):
            talk.client.lookup(buffer)


@request
def _copy(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    handles = [talk.array(pick) for pick in picks]
    talk.send(
        "copy_arrays",
        array_handles=handles,
        device_ids=DEVICES[one % len(DEVICES)] if one else [],
        copy_semantics=two % 5,
        memory_kind=("", "", "", "device", "pinned_host", "nowhere")[two % 6],
        result_handles=[talk.name() for _ in range(len(handles) - (two == 15))],
    )


@request
def _assemble(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    talk.send(
        "assemble_array_from_single_device_arrays",
        shape={"dims": SHAPES[one % len(SHAPES)]},
        sharding=talk.sharding(two),
        single_device_array_handles=[talk.array(pick) for pick in picks],
        copy_semantics=one % 4,
        result_handle=talk.name(),
    )


@request
def _disassemble(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    talk.send(
        "disassemble_into_single_device_arrays",
        array_handle=talk.array(one),
        result_handles=[talk.name() for _ in range((1, 4, 8, 2)[two % 4])],
    )


@request
def _shard(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    talk.send(
        "fully_replicated_shard",
        array_handle=talk.array(one),
        copy_semantics=two % 4,
        result_handle=talk.name(),
    )


@request
def _remap(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    handles = [talk.array(one), talk.array(two)]
    specs = [spec(SHAPES[p % 3], talk.sharding(p)) for p in (one, two)]
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
                        "device_list": {"device_ids": DEVICES[pick % len(DEVICES)]},
                    }
                ],
            }
            for pick in picks
        ]
    talk.send(
        "remap_arrays",
        plan=plan,
        array_handles=handles,
        copy_semantics=two % 4,
        result_handles=[talk.name(), talk.name()],
    )


@request
def _reshard(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    talk.send(
        ("reshard_arrays", "bitcast_arrays")[one % 2],
        array_handles=[talk.array(pick) for pick in picks],
        array_specs=[
            {
                "dtype": {"kind": DTYPES[one % len(DTYPES)]},
                "shape": {"dims": SHAPES[pick % len(SHAPES)]},
                "sharding": talk.sharding(two + pick),
            }
            for pick in picks[(two == 15) :]
        ],
        copy_semantics=two % 5,
        result_handles=[talk.name() for _ in picks],
    )


@request
def _errors(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    talk.send(
        "make_error_arrays",
        error={"code": two, "message": "made"},
        array_specs=[spec(SHAPES[one % 3], talk.sharding(two))],
        array_handles=[talk.name()],
    )
