"""Serializes programs of a proxy, and lists their modules, which JAX's client refuses.

The serialized form is the program as it was compiled, with its options. It is loaded by compiling
it again, which is safe, and fast if the proxy has it in its cache.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from . import local
from .attempts import runtime_error, when_refused
from .compile_calls import bytecode_of

__all__ = ["install"]

_NOT_SERIALIZED = "does not support `Serialize`"
_NO_MODULES = "GetHloModules"
#: The prefix of the serialized form; a line of JSON, the options and the module follow.
_BEGINNING = b"shared-pathways-program 1 "
#: The attribute of a program that calls functions of this process, see `callbacks`.
_CALLS_BACK = "sps.callbacks"
#: Maximum size of kept programs; the oldest are dropped.
_MOST_BYTES = 64 << 20


def install() -> None:
    """Installs this in JAX permanently; programs of other clients are left to JAX."""
    jaxlib: Any = importlib.import_module("jaxlib._jax")
    compiler: Any = importlib.import_module("jax._src.compiler")
    programs = _Programs()
    loaded, client = jaxlib.LoadedExecutable, jaxlib.Client
    loaded.hlo_modules = when_refused(loaded.hlo_modules, (_NO_MODULES,), _modules_of)
    loaded.serialize = when_refused(loaded.serialize, (_NOT_SERIALIZED,), programs.serialized)
    client.serialize_executable = when_refused(
        client.serialize_executable,
        (_NOT_SERIALIZED,),
        lambda _client, executable: programs.serialized(executable),
    )
    client.deserialize_executable = _loaded_by(client.deserialize_executable)
    compiler.backend_compile_and_load = programs.noted_by(compiler.backend_compile_and_load)


@dataclasses.dataclass(frozen=True)
class _Program:
    """The inputs of a program's compilation."""

    module: bytes
    options: bytes


class _Programs:
    """The programs that were compiled last, by their fingerprints."""

    def __init__(self) -> None:
        self._programs: collections.OrderedDict[bytes, _Program] = collections.OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def noted_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps JAX's compilation, and records programs for proxies."""

        @functools.wraps(original)
        def compile_and_load(
            backend: Any, module: Any, devices: Any, options: Any, host_callbacks: Any = ()
        ) -> Any:
            calls_back = host_callbacks or _CALLS_BACK in module.operation.attributes
            if calls_back or not local.is_claimed(backend):
                return original(backend, module, devices, options, host_callbacks)
            # (Not the module itself: JAX drops its compiled programs when that is released.)
            program = _Program(bytecode_of(module), options.SerializeAsString())
            executable = original(backend, module, devices, options, host_callbacks)
            self._keep(executable.fingerprint, program)
            return executable

        return compile_and_load

    def serialized(self, executable: Any) -> bytes:
        """Returns the serialized form of a program."""
        with self._lock:
            program = self._programs.get(executable.fingerprint)
        if program is None:
            raise runtime_error()(
                "UNIMPLEMENTED: a program on a proxy can be serialized while it is one of the last "
                f"that were compiled ({_MOST_BYTES >> 20} MiB of them are kept), and if it calls "
                "no Python functions; serialize it when it is compiled, or use jax.export"
            )
        description = {
            "jaxlib": _jaxlib_version(),
            "platform": executable.client._raw_platform,  # noqa: SLF001 - not that of `local`
            "devices": [device.id for device in executable.local_devices()],
            "options": len(program.options),
        }
        line = json.dumps(description).encode() + b"\n"
        return _BEGINNING + line + program.options + program.module

    def _keep(self, fingerprint: bytes | None, program: _Program) -> None:
        size = len(program.module)
        if not fingerprint or size > _MOST_BYTES:
            return
        with self._lock:
            if (older := self._programs.pop(fingerprint, None)) is not None:
                self._bytes -= len(older.module)
            self._programs[fingerprint] = program
            self._bytes += size
            while self._bytes > _MOST_BYTES:
                _, dropped = self._programs.popitem(last=False)
                self._bytes -= len(dropped.module)


def _loaded_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps JAX's loading of a serialized program."""

    def deserialize_executable(
        client: Any,
        serialized: bytes,
        executable_devices: Any,
        compile_options: Any = None,
        *rest: Any,
        **named: Any,
    ) -> Any:
        if not serialized.startswith(_BEGINNING):
            return original(client, serialized, executable_devices, compile_options, *rest, **named)
        return _load(client, serialized, list(executable_devices), compile_options)

    return deserialize_executable


def _load(client: Any, serialized: bytes, devices: Sequence[Any], options: Any) -> Any:
    line, _, data = serialized.removeprefix(_BEGINNING).partition(b"\n")
    description = json.loads(line)
    for what, here in (("jaxlib", _jaxlib_version()), ("platform", client._raw_platform)):  # noqa: SLF001
        if description[what] != here:
            raise runtime_error()(
                f"INVALID_ARGUMENT: the program was serialized for {what} {description[what]}, "
                f"but this is {here}: compile it again"
            )
    wanted = description["devices"]
    if len(devices) != len(wanted) or {device.id for device in devices} == set(wanted):
        # JAX names all devices of the client in order if its caller names none. A mesh may have
        # them in another order.
        by_id = {device.id: device for device in client.devices()}
        if missing := [number for number in wanted if number not in by_id]:
            raise runtime_error()(
                f"INVALID_ARGUMENT: the program was serialized for devices that do not exist here, "
                f"{missing}: name its devices (execution_devices), or compile it again"
            )
        devices = [by_id[number] for number in wanted]
    size = description["options"]
    xla_client: Any = importlib.import_module("jaxlib.xla_client")
    if options is None:
        options = xla_client.CompileOptions.ParseFromString(data[:size])
    import numpy as np  # noqa: PLC0415 - as in `workarounds`

    numbers = np.array([[device.id for device in devices]], np.int32)
    options.device_assignment = xla_client.DeviceAssignment.create(numbers)
    compiler: Any = importlib.import_module("jax._src.compiler")
    return compiler.backend_compile_and_load(
        client, _parsed(data[size:]), xla_client.DeviceList(tuple(devices)), options, ()
    )


def _modules_of(executable: Any) -> list[Any]:
    try:
        hlo: Any = importlib.import_module("jaxlib._hlo")
    except ImportError:  # before JAX 0.10
        hlo = importlib.import_module("jaxlib._jax")
    # The protocol has them only as text.
    return [hlo.hlo_module_from_text(executable.get_hlo_text())]


def _parsed(bytecode: bytes) -> Any:
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    ir: Any = importlib.import_module("jaxlib.mlir.ir")
    with mlir.make_ir_context():
        return ir.Module.parse(bytecode)


def _jaxlib_version() -> str:
    version: str = importlib.import_module("jaxlib").__version__
    return version
