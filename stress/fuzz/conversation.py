"""A session in which steps are chosen, sent, and awaited."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np

from harness.proxy.raw import Failed, replicated, single, split
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from stress.fuzz.client import DEADLINE_S, FuzzClient
from stress.fuzz.odd_values import DEVICES
from stress.fuzz.shardings import hlo_sharding, odd_op_sharding

__all__ = ["REQUESTS", "Conversation", "FuzzError", "Step", "request"]

#: One step of a sequence: numbers only, so that hypothesis can shrink them.
Step = tuple[str, int, int, list[int]]


class FuzzError(AssertionError):
    """The proxy misbehaved."""


class Conversation:
    """Sends steps in one session.

    Args:
      client: The session.
      hopeful: Whether every request must be answered, as none waits for missing data.
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

    def new_handle(self) -> int:
        return next(self._handles)

    def array(self, pick: int) -> int:
        return self.arrays[pick % len(self.arrays)] if self.arrays and pick != 15 else 999_999_999

    def program(self, pick: int) -> int:
        return self.programs[pick % len(self.programs)] if self.programs and pick != 15 else 12345

    def name(self) -> int:
        handle = self.new_handle()
        self.arrays.append(handle)
        return handle

    def sharding(self, pick: int) -> core_pb2.ShardingProto:
        if pick > 12:
            return self.odd_sharding(random.Random(16 * len(self.sent) + pick))
        devices = DEVICES[pick % len(DEVICES)]
        if len(devices) == 1:
            return single(devices[0])
        return (split, replicated)[pick % 2](devices)

    def odd_sharding(self, draw: random.Random) -> core_pb2.ShardingProto:
        devices = draw.choice(([0, 1], [0, 1, 2], list(range(4)), list(range(8)), [2, 1], [5]))
        # (One in ten is of another number of devices.)
        count = draw.choice((1, 2, 8)) if draw.random() < 0.1 else len(devices)
        return hlo_sharding(odd_op_sharding(draw, count), devices)

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
        REQUESTS[kind](self, one, two, picks)

    def finish(self) -> None:
        """Every request is answered, or at least one that is sent after them all."""
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

    def store(self, shape: Sequence[int], size: int = 0) -> int:
        buffer = self.new_handle()
        known = min(shape, default=0) >= 0 and np.prod(shape, dtype=object) < 1 << 22
        nbytes = int(np.prod(shape, dtype=object)) * 4 if known else 16
        if size == 14:
            nbytes = max(0, nbytes - 1)
        with contextlib.suppress(grpc.RpcError):
            self.client.store(buffer, bytes(nbytes))
        return buffer


Request = Callable[[Conversation, int, int, list[int]], None]
#: By its name in a step; each module of requests adds its own.
REQUESTS: dict[str, Request] = {}


def request(function: Request) -> Request:
    """Has steps send this."""
    REQUESTS[function.__name__.removeprefix("_")] = function
    return function
