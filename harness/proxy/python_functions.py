"""Functions of `jax.experimental.colocated_python` for a proxy, made without JAX's client.

Each takes an array of four 32-bit floats on one device and returns another one.
"""

from __future__ import annotations

import functools
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
from jax.experimental.colocated_python import serialization

from harness.processes import DEADLINE_S
from harness.proxy.raw import RawClient, single, spec
from shared_pathways_service.protocol.ifrt import core_pb2

SHAPE = (4,)
Function = Callable[[Any], Any]


class _Sharding:
    """Becomes a sharding in the process that unpickles it: the devices are there."""

    def __init__(self, device: int) -> None:
        self._device = device

    def __reduce__(self) -> Any:
        return serialization._unreduce_single_device_sharding, (self._device, None)


class _Spec:
    """Becomes the type of an argument or result."""

    def __init__(self, device: int) -> None:
        self._device = device

    def __reduce__(self) -> Any:
        kind = np.dtype(np.float32)
        sharding = _Sharding(self._device)
        return functools.partial(jax.ShapeDtypeStruct, SHAPE, kind, sharding=sharding), ()


def pickled(function: Function, device: int = 0) -> bytes:
    """Returns a function as JAX's client pickles it, whose argument is on a device."""
    types = (_Spec(device),)
    arguments, results = jax.tree.structure(((0,), {})), jax.tree.structure(0)
    made: bytes = serialization._serialize((function, arguments, types, results, types, None))
    return made


def compile_python(client: RawClient, function: Function, device: int = 0) -> int:
    """Makes a program of a function; returns its handle."""
    custom = core_pb2.CustomCallProgramProto(
        type="jax_colocated_python_v0.0.1",
        name=function.__name__,
        serialized_program_text=pickled(function, device),
        input_specs=[spec(SHAPE, single(device))],
        output_specs=[spec(SHAPE, single(device))],
    )
    custom.devices.device_ids.append(device)
    program = {
        "type_name": "xla::ifrt::CustomCallProgram",
        "data": custom.SerializeToString(),
    }
    handle: int = client.call("compile", program=program).loaded_executable_handle
    return handle


class Waiting:
    """A function that waits for `go`. It and a process that it forks, if it does, say so before."""

    def __init__(self, directory: Path, *, forks: bool = False) -> None:
        began, go = directory / "began", directory / "go"
        os.mkfifo(began)
        os.mkfifo(go)
        # (Open for both, so that neither side waits for the other one to open it.)
        self._began = os.open(began, os.O_RDWR)
        self._go = os.open(go, os.O_RDWR)

        def wait(x: Any) -> Any:
            forked = os.fork() if forks else None
            if forked == 0:
                signal.pause()
            pids = [os.getpid()] if forked is None else [os.getpid(), forked]
            began.write_text(" ".join(map(str, pids)))
            with go.open() as file:
                file.readline()
            return x

        self.function: Function = wait

    def processes(self) -> list[psutil.Process]:
        """Waits until the function waits; returns its process and the forked one."""
        assert select.select([self._began], [], [], DEADLINE_S)[0], "the function has not begun"
        return [psutil.Process(int(pid)) for pid in os.read(self._began, 1 << 10).split()]

    def go(self) -> None:
        """Lets the function return."""
        os.write(self._go, b"\n")

    def close(self) -> None:
        """Frees the pipes."""
        os.close(self._began)
        os.close(self._go)
