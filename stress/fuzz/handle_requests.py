"""Requests about handles, and those that are not served."""

from __future__ import annotations

from stress.fuzz.conversation import Conversation, request
from stress.fuzz.odd_values import DTYPES, SHAPES


@request
def _ready(talk: Conversation, _one: int, _two: int, picks: list[int]) -> None:
    talk.send("check_value_ready", value_handles=[talk.array(pick) for pick in picks])


@request
def _delete(talk: Conversation, one: int, _two: int, picks: list[int]) -> None:
    handles = [talk.array(pick) for pick in (one, *picks)]
    answer = talk.wait(talk.send("delete_array", array_handle=handles)) if talk.hopeful else None
    future = answer.deletion_future_handle if answer else (1 << 63) + one
    talk.send("check_future", future_handle=future)


@request
def _is_deleted(talk: Conversation, one: int, _two: int, _picks: list[int]) -> None:
    talk.send("is_array_deleted", array_handle=talk.array(one))


@request
def _destruct(talk: Conversation, one: int, _two: int, picks: list[int]) -> None:
    talk.send("destruct_array", array_handle=[talk.array(pick) for pick in (one, *picks)])


@request
def _layout(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    talk.send(
        "get_default_layout",
        dtype={"kind": DTYPES[one % len(DTYPES)]},
        dims=SHAPES[two % len(SHAPES)],
        device_id=picks[0] - 1 if picks else 0,
        memory_kind={"memory_kind": ("device", "", "nowhere")[two % 3]},
    )


@request
def _unserved(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    kind, field = (
        ("init", ""),
        ("loaded_host_callback_poll", "loaded_host_callback_handle"),
        ("loaded_host_callback_return", "host_callback_execution_handle"),
        ("loaded_executable_mpmd_metadata", "mpmd_loaded_executable_handle"),
        ("loaded_executable_mpmd_cost_analysis", "loaded_executable_handle"),
    )[one % 5]
    talk.send(kind, **({field: talk.program(two)} if field else {}))


@request
def _assignment(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    talk.send("get_default_device_assignment", num_replicas=one - 1, num_partitions=two - 1)
