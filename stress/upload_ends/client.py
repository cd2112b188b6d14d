"""A program of JAX that uploads arrays while its tunnel ends, again and again.

    python -m stress.upload_ends.client UPLOADS BYTES SECONDS

The last is that of `race_window`. It reads orders and writes what it does, a line of JSON each.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from collections.abc import Iterator

import jax
import numpy as np
from jax.extend.backend import ifrt_proxy

from stress.upload_ends.race_window import NoWindow, RaceWindow

#: For threads of JAX that have not come to the window yet.
_AFTER_S = 0.15


def _say(word: str, **more: float) -> None:
    print(json.dumps({"word": word, **more}), flush=True)


def _order() -> str:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit
    text: str = json.loads(line)
    return text


@contextlib.contextmanager
def _unavailable() -> Iterator[None]:
    """Passes over the error of a tunnel that has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "UNAVAILABLE" not in str(error):
            raise


def _play(address: str, window: RaceWindow, data: list[np.ndarray]) -> None:
    """Plays one round: connects, begins uploads when it may, and waits for their errors."""
    window.clear()
    client = ifrt_proxy.get_client(f"grpc://{address}", ifrt_proxy.ClientConnectionOptions())
    devices = client.devices()
    jax.device_put(np.ones(2, np.float32), devices[0]).block_until_ready()
    _say("connected")
    _order()
    arrays = []
    for number, each in enumerate(data):
        # (Where the tunnel has ended before, it may fail at once.)
        with _unavailable():
            arrays.append(jax.device_put(each, devices[number % len(devices)]))
    _say("uploading")
    began = time.monotonic()
    _wait_for_errors(arrays)
    error_s = time.monotonic() - began
    time.sleep(_AFTER_S)
    # The client ends here, as when a program connects again.
    del arrays, devices, client
    gc.collect()
    _say("failed", error_s=round(error_s, 3), entered=window.entered)


def _wait_for_errors(arrays: list[jax.Array]) -> None:
    for array in arrays:
        with _unavailable():
            array.block_until_ready()
            raise AssertionError("an array arrived")


def main() -> None:
    uploads, size, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    try:
        window = RaceWindow(seconds)
    except NoWindow as error:
        raise SystemExit(str(error)) from None
    data = [np.full(size // 4, number, np.float32) for number in range(uploads)]
    while True:
        _play(_order(), window, data)


if __name__ == "__main__":
    main()
