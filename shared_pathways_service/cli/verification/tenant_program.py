"""The program that `sps verify` runs as a tenant: ``python -m …verification.tenant_program``.

The first line of standard input has the arguments of connect() as JSON; each further line is one
order. Every message on standard output is one line of JSON with its ``kind``: ``event``,
``connected``, ``answer``, ``left`` or ``failed``. The end of standard input ends the connection.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from shared_pathways_service import isc_pathways
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event

__all__ = ["main"]

#: Rows and columns of the matrices. Small integers: every sum of products is exact, also where
#: factors are rounded to bfloat16, so results are compared for equality.
_SIZE = 256
_LARGEST = 8
#: Bytes of the array whose transfer is measured, and the number of measurements.
_TRANSFER_BYTES = 32 << 20
_TRANSFERS = 3
_ROUND_TRIPS = 20


class _Messages:
    """Writes messages for the controlling process; events arrive on another thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, kind: str, **data: Any) -> None:
        with self._lock:
            self._stream.write(json.dumps({"kind": kind, **data}) + "\n")
            self._stream.flush()

    def send_event(self, event: Event) -> None:
        self.send("event", event=event.to_dict())


def main() -> None:
    """Connects, executes orders, and disconnects."""
    # Output of libraries must not mix with the messages.
    messages = _Messages(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    arguments = json.loads(sys.stdin.readline())
    try:
        with isc_pathways.connect(**arguments, on_event=messages.send_event) as connection:
            messages.send(
                "connected",
                slices=len(connection.slices),
                chips=connection.total_chips,
                seconds=connection.timings["connect"],
            )
            for line in sys.stdin:
                order = line.strip()
                if order == "leave":
                    break
                messages.send("answer", **_ORDERS[order]())
        messages.send("left")
    except KeyboardInterrupt:
        messages.send("left")
    except SharedPathwaysError as error:
        messages.send("failed", error=error.to_json())
    except Exception as error:  # noqa: BLE001 - the controlling process judges JAX's errors
        text = f"{type(error).__name__}: {error}"
        messages.send("failed", error={"type": "", "message": text, "hint": ""})


def _integers(seed: int, rows: int) -> Any:
    import numpy as np  # noqa: PLC0415 - after the connection has begun

    values = np.random.default_rng(seed).integers(-_LARGEST, _LARGEST + 1, (rows, _SIZE))
    return values.astype(np.float32)


def _every_chip() -> dict[str, Any]:
    """Computes a product on each chip separately; returns the chips with a wrong result."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    product = jax.jit(lambda a: a @ a.T + 1)
    wrong = []
    for seed, device in enumerate(jax.devices()):
        values = _integers(seed, _SIZE)
        result = np.asarray(product(jax.device_put(values, device)))
        if not np.array_equal(result, values @ values.T + 1):
            wrong.append(repr(device))
    return {"chips": len(jax.devices()), "wrong": wrong}


def _all_slices() -> dict[str, Any]:
    """Computes over all chips: each chip needs the rows of all others."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: PLC0415

    devices = jax.devices()
    rows = NamedSharding(Mesh(np.array(devices), ("chip",)), PartitionSpec("chip"))
    values = _integers(len(devices), 8 * len(devices))
    result = jax.jit(lambda a: a @ a.T, out_shardings=rows)(jax.device_put(values, rows))
    right = bool(np.array_equal(np.asarray(result), values @ values.T))
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    return {"chips": len(devices), "slices": slices, "right": right}


def _transfer() -> dict[str, Any]:
    """Measures transfers and round trips."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    values = np.random.default_rng(0).random(_TRANSFER_BYTES // 4, np.float32)
    device = jax.devices()[0]
    there, back, right = [], [], True
    for _ in range(_TRANSFERS):
        sent, there_s = _timed(lambda: jax.block_until_ready(jax.device_put(values, device)))
        got, back_s = _timed(functools.partial(np.asarray, sent))
        there.append(there_s)
        back.append(back_s)
        right = right and bool(np.array_equal(got, values))
    increment = jax.jit(lambda a: a + 1)
    one = jax.device_put(np.float32(1), device)
    increment(one).block_until_ready()
    trips = [_timed(lambda: np.asarray(increment(one)))[1] for _ in range(_ROUND_TRIPS)]
    return {
        "right": right,
        "to_device_bytes_per_s": _TRANSFER_BYTES / min(there),
        "from_device_bytes_per_s": _TRANSFER_BYTES / min(back),
        "round_trip_s": statistics.median(trips),
    }


def _work_on() -> dict[str, Any]:
    """Runs a compiled function on an array that the first call created.

    JAX's client aborts the process if it compiles over a broken connection. Existing programs and
    arrays raise instead.
    """
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    if not _COMPILED:
        increment = jax.jit(lambda a: a + 1)
        one = jax.device_put(np.float32(1), jax.devices()[0])
        _COMPILED.append(lambda: float(np.asarray(increment(one))))
    return {"right": _COMPILED[0]() == 2.0}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


#: The function of `_work_on`, once it is compiled.
_COMPILED: list[Callable[[], float]] = []
_ORDERS = {
    "every chip": _every_chip,
    "all slices": _all_slices,
    "transfer": _transfer,
    "work on": _work_on,
}

if __name__ == "__main__":
    main()
