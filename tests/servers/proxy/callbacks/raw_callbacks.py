"""The callback protocol spoken without JAX: calls are taken one by one, and answered at will."""

from __future__ import annotations

import queue
import threading
from typing import Any, Self

import grpc
import numpy as np

from harness.processes import DEADLINE_S
from harness.proxy.raw import RawClient
from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.servers.proxy.transport.calls import CALLBACKS

NONCE = bytes(range(16))
CALL = "xla_ffi_python_cpu_callback"
INDEX = "mhlo.backend_config = {index = 0 : ui64}"


def calling(
    mark: str = 'sps.callbacks = "7 1"', *, name: str = CALL, how: str = INDEX, size: int = 4
) -> str:
    """A program that adds 1 to what callback 0 makes of its argument."""
    kind = f"tensor<{size}xf32>"
    return f"""
module @calling attributes {{mhlo.num_partitions = 1 : i32{", " if mark else ""}{mark}}} {{
  func.func public @main(%x: {kind}) -> {kind} {{
    %y = stablehlo.custom_call @{name}(%x) {{{how}}} : ({kind}) -> {kind}
    %one = stablehlo.constant dense<1.0> : {kind}
    %z = stablehlo.add %y, %one : {kind}
    return %z : {kind}
  }}
}}
"""


def telling(times: int = 1, *, mark: str = 'sps.callbacks = "7 1"', size: int = 4) -> str:
    """A program that calls callback 0, which has no results, so often, and adds 1."""
    kind = f"tensor<{size}xf32>"
    call = f"stablehlo.custom_call @{CALL}(%x) {{{INDEX}, has_side_effect = true}} : ({kind}) -> ()"
    calls = "\n    ".join([call] * times)
    return f"""
module @telling attributes {{mhlo.num_partitions = 1 : i32, {mark}}} {{
  func.func public @main(%x: {kind}) -> {kind} {{
    {calls}
    %one = stablehlo.constant dense<1.0> : {kind}
    %z = stablehlo.add %x, %one : {kind}
    return %z : {kind}
  }}
}}
"""


def sharded_calling(devices: int) -> str:
    """The same over several devices, eight elements split among them; called on the first."""
    split = f'{{mhlo.sharding = "{{devices=[{devices}]<=[{devices}]}}"}}'
    return (
        calling(how=f'{INDEX}, mhlo.sharding = "{{maximal device=0}}"', size=8)
        .replace("num_partitions = 1", f"num_partitions = {devices}")
        .replace("%x: tensor<8xf32>)", f"%x: tensor<8xf32> {split})")
    )


class RawCallbacks:
    """One stream; use as a context manager."""

    def __init__(
        self, client: RawClient, *, nonce: bytes = NONCE, token: str | None = None
    ) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[pb.CallbackProxyMessage | None] = queue.SimpleQueue()
        method: Any = client.channel.stream_stream(CALLBACKS)
        metadata: list[tuple[str, str | bytes]] = [("sps-callbacks-bin", nonce)]
        if token is not None:
            metadata.append(("authorization", f"Bearer {token}"))
        self.stream = method(iter(self._outgoing.get, None), metadata=metadata)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        assert self.next().ready.version == 1
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._outgoing.put(None)
        self.stream.cancel()
        self._reader.join()

    def _read(self) -> None:
        try:
            for raw in self.stream:
                self._incoming.put(pb.CallbackProxyMessage.FromString(raw))
        except grpc.RpcError:
            pass
        self._incoming.put(None)

    def next(self) -> pb.CallbackProxyMessage:
        message = self._incoming.get(timeout=DEADLINE_S)
        assert message is not None, f"the stream ended: {self.stream.details()}"
        return message

    def refusal(self) -> grpc.StatusCode:
        """How the stream ended, without a message."""
        assert self._incoming.get(timeout=DEADLINE_S) is None
        self.close()
        code: grpc.StatusCode = self.stream.code()
        return code

    def is_accepted(self) -> bool:
        """Whether the stream began; it is closed either way."""
        message = self._incoming.get(timeout=DEADLINE_S)
        self.close()
        return message is not None

    def wait_for_end(self) -> None:
        while self._incoming.get(timeout=DEADLINE_S) is not None:
            pass

    def invocation(self) -> pb.CallbackInvocation:
        message = self.next()
        assert message.WhichOneof("message") == "invocation", message
        return message.invocation

    def send(self, raw: bytes) -> None:
        self._outgoing.put(raw)

    def answer(self, call: int, *results: np.ndarray, data: bytes | None = None) -> None:
        answer = pb.CallbackAnswer(call=call)
        for result in results:
            answer.results.add(dtype=result.dtype.name, shape=result.shape)
        answer.data = b"".join(r.tobytes() for r in results) if data is None else data
        self.send(pb.CallbackClientMessage(answer=answer).SerializeToString())

    def fail(self, call: int, text: str) -> None:
        error = pb.CallbackError(type="ValueError", text=text, traceback=f"ValueError: {text}")
        answer = pb.CallbackAnswer(call=call, error=error)
        self.send(pb.CallbackClientMessage(answer=answer).SerializeToString())

    def piece(self, call: int, data: bytes) -> None:
        piece = pb.CallbackPiece(call=call, data=data)
        self.send(pb.CallbackClientMessage(piece=piece).SerializeToString())
