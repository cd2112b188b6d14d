"""User contexts: each goes back to the client once, in answers that it takes in their order."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from harness.deadlines import deadline
from harness.proxy.programs import DOUBLE, compile_options
from harness.proxy.raw import F32, Failed, RawClient, single
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.session.session import Call
from shared_pathways_service.servers.proxy.session.user_contexts import UserContexts

FOUR = np.arange(4, dtype=np.float32)


class Told:
    """What a client learns, as jaxlib's understands it."""

    def __init__(self) -> None:
        self.contexts = itertools.count(1)
        self.sent: Counter[int] = Counter()
        self.back: Counter[int] = Counter()
        self.numbers: list[int] = []

    def call(self, client: RawClient, kind: str, context: int = 0, **fields: Any) -> Any:
        context = context or next(self.contexts)
        self.sent[context] += 1
        pending = client.begin(kind, context=context, **fields)
        metadata = pending.future.result(deadline(60.0)).response_metadata
        if not metadata.status.code:
            self.numbers.append(metadata.seq_num)
            self.back.update(metadata.destroyed_user_context_ids)
        return pending


def test_each_context_goes_back_once(client: RawClient) -> None:
    told = Told()
    array = client.put(FOUR, single(0))
    # The only other answer with a place in the order so far.
    told.numbers.append(0)
    program = told.call(
        client,
        "compile",
        program={"type_name": "xla::ifrt::XlaProgram", "data": DOUBLE.encode()},
        compile_options={
            "type_name": "xla::ifrt::XlaCompileOptions",
            "data": compile_options([0]),
        },
    ).result()
    handle = program.loaded_executable_handle
    told.call(client, "loaded_executable_metadata", loaded_executable_handle=handle)
    told.call(client, "check_future", future_handle=program.ready_future_handle)
    for _ in range(3):
        told.call(
            client,
            "loaded_executable_execute",
            context=77,
            loaded_executable_handle=handle,
            args_handles=[array],
            result_array_handle=[500],
        )
        told.call(client, "check_value_ready", context=78, value_handles=[500])
    # Refused, at once and later: an error brings nothing back.
    with pytest.raises(Failed):
        told.call(client, "fully_replicated_shard", array_handle=999).result()
    told.call(
        client,
        "make_error_arrays",
        error={"code": 10},
        array_specs=[{"dtype": {"kind": F32}, "sharding": single(0)}],
        array_handles=[501],
    )
    with pytest.raises(Failed):
        told.call(client, "check_value_ready", value_handles=[501]).result()
    client.call("destruct_array", array_handle=[501])
    told.call(client, "get_default_layout", dtype={"kind": F32}, dims=[2])
    told.call(client, "check_value_ready", value_handles=[500])
    assert told.back == told.sent
    in_order = sorted(number for number in told.numbers if number < 1 << 62)
    assert in_order == list(range(len(in_order)))
    assert len(in_order) == 8


def test_an_unsent_answer_leaves_no_gap() -> None:
    contexts = UserContexts()
    first, second, third = (proxy_pb2.IfrtResponse() for _ in range(3))
    for response in (first, second, third):
        response.check_value_ready_response.SetInParent()
    contexts.give_back(first, 11)
    contexts.undo(first)
    contexts.give_back(second, 12)
    assert second.response_metadata.seq_num == 0
    assert list(second.response_metadata.destroyed_user_context_ids) == [12, 11]
    contexts.give_back(third, 0)
    assert third.response_metadata.seq_num == 1
    assert not third.response_metadata.destroyed_user_context_ids


def test_a_client_with_only_failures_costs_bounded_memory() -> None:
    contexts = UserContexts()
    for context in range(1, 100_000):
        contexts.owe(context)
    back = 0
    for _ in range(100):
        response = proxy_pb2.IfrtResponse()
        response.check_value_ready_response.SetInParent()
        contexts.give_back(response, 0)
        count = len(response.response_metadata.destroyed_user_context_ids)
        assert count <= 256
        back += count
    assert back == 4096


def test_a_refused_answer_preserves_the_order() -> None:
    contexts = UserContexts()
    sent: list[proxy_pb2.IfrtResponse] = []

    def send(data: bytes) -> None:
        answer = proxy_pb2.IfrtResponse.FromString(data)
        if answer.HasField("check_value_ready_response") and not sent:
            sent.append(answer)
            raise StatusError(Code.RESOURCE_EXHAUSTED, "too much is unread")
        sent.append(answer)

    for op_id in (1, 2):
        call = Call(op_id, send, contexts, 10 + op_id)
        call.response.check_value_ready_response.SetInParent()
        call.answer()
    refused, error, good = sent
    assert refused.response_metadata.seq_num == good.response_metadata.seq_num == 0
    assert int(error.response_metadata.status.code) == Code.RESOURCE_EXHAUSTED
    assert not error.response_metadata.destroyed_user_context_ids
    assert list(good.response_metadata.destroyed_user_context_ids) == [12, 11]
