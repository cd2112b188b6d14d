"""A session that must not notice the fuzzing, and the usage of its proxy."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import numpy as np

from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import RawClient, single, split
from shared_pathways_service.metrics import measurement_messages
from shared_pathways_service.metrics.families import values_of
from shared_pathways_service.protocol import proxy_status_pb2
from shared_pathways_service.protocol.ifrt import core_pb2
from stress.fuzz.client import DEADLINE_S
from stress.fuzz.conversation import FuzzError

__all__ = ["HELD", "Witness", "check_nothing_left", "counters_of"]


class Witness:
    """A session that computes all the time and checks its results.

    Attributes:
      checked: Results that were right.
      slowest_s: Duration of the slowest of them.
      error: The error, after which it does not compute any more.
    """

    def __init__(self, address: str) -> None:
        self.checked = 0
        self.slowest_s = 0.0
        self.error: BaseException | None = None
        self._client = RawClient(address)
        self._on_one = self._client.compile(DOUBLE, [7])
        self._on_all = self._client.compile(sharded_double(8), range(8))
        self.resume()

    def resume(self) -> None:
        """Computes again, after `pause`."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._compute, name="witness")
        self._thread.start()

    def _compute(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self._check_one(self._on_one, 4, single(7))
                self._check_one(self._on_all, 8, split(range(8)))
                self.checked += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001 - told by whoever looks
            self.error = error

    def _check_one(self, program: int, size: int, sharding: core_pb2.ShardingProto) -> None:
        values = np.full(size, self.checked, np.float32)
        array = self._client.put(values, sharding)
        (doubled,) = self._client.execute(program, [array])
        if not np.array_equal(self._client.fetch(doubled), 2 * values):
            raise FuzzError("the witness got a wrong result")
        self._client.call("destruct_array", array_handle=[array, doubled])

    def check(self) -> None:
        """Waits until a result that is computed from now on was right.

        Raises:
          FuzzError: It was not, or did not come.
        """
        # (Of two that end from now on, the second began after now.)
        due, deadline = self.checked + 2, time.monotonic() + DEADLINE_S
        while self.checked < due:
            if self.error is not None:
                raise FuzzError(f"the witness failed: {self.error!r}") from self.error
            if time.monotonic() > deadline:
                raise FuzzError("the witness hangs")
            time.sleep(0.005)

    def pause(self) -> None:
        """Ends the computing; the session stays, and holds what `HELD` says."""
        self._stop.set()
        self._thread.join(DEADLINE_S)

    def close(self) -> None:
        """Ends the session."""
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
    """Waits until a proxy holds only the objects of a witness.

    Raises:
      FuzzError: It holds more.
    """
    deadline = time.monotonic() + deadline_s
    while (found := _held(address)) != HELD:
        if time.monotonic() > deadline:
            raise FuzzError(f"sessions that have ended left something: {found}, not {HELD}")
        time.sleep(0.05)


def counters_of(address: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """Asks a proxy for its counters."""
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(
            f"/{measurement_messages.SERVICE}/{measurement_messages.METHOD}"
        )
        answer = proxy_status_pb2.GetCountersResponse.FromString(call(b"", timeout=deadline_s))
    return values_of(measurement_messages.families_of(answer))


def _held(address: str) -> dict[str, float]:
    counters = counters_of(address)
    values: dict[str, Any] = {name: counters[f"sps_proxy_{name}"] for name in HELD}
    return values | {"device_memory_bytes": sum(values["device_memory_bytes"].values())}
