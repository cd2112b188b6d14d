"""Runs Python callbacks of programs on a proxy: the functions stay, and are called, here.

JAX's client of a proxy refuses the functions of a program (`jax.debug.print`, `jax.pure_callback`,
`jax.experimental.io_callback`), but not the operations by which the program calls them. So this
process keeps the functions, and the program is marked and compiled without them. The proxy calls
them on a separate stream, which is opened for the first such program. Other proxies, such as
Google's, have no such stream: their programs are compiled unchanged, and JAX's client refuses them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import callback_dispatch, compile_calls, local
from . import callback_wire as wire
from .callback_barrier import CallbackBarrier
from .callback_lanes import Lanes, NotCalled
from .callback_names import mark
from .callback_stream import CallbackStream, NotServed

__all__ = [
    "NONCE_BYTES",
    "NONCE_KEY",
    "OURS",
    "await_effects",
    "end",
    "install",
    "reason",
    "refuse",
    "serve",
]

#: The session's name for its stream of callbacks.
NONCE_KEY = "sps_callbacks"
NONCE_BYTES = 16
#: The prefix of our proxies' version; no stream is requested from others.
OURS = "shared-pathways-service"
_OTHER = "the proxy is not of this project: JAX's client cannot be called back by it"
_STRICT = (
    "in strict mode (strict=True, --strict, SPS_STRICT=1) they are refused as on Google's proxies"
)

_log = logging.getLogger(__name__)
_served: weakref.WeakKeyDictionary[Any, Callbacks] = weakref.WeakKeyDictionary()
_refused: weakref.WeakSet[Any] = weakref.WeakSet()
_reason = _OTHER
_calling = threading.local()


def serve(client: Any, address: str, token: str | None, nonce: bytes) -> None:
    """Serves callbacks of programs on a client's proxy, at ``unix:/path`` or ``host:port``."""
    if str(getattr(client, "platform_version", "")).startswith(OURS):
        _served[client] = Callbacks(address, token, nonce)


def refuse(client: Any) -> None:
    """Lets a client refuse programs with callbacks, for strict mode."""
    _refused.add(client)


def await_effects(client: Any) -> None:
    """Waits for a bounded time for programs that may still call functions."""
    if (callbacks := _served.get(client)) is not None:
        callbacks.await_effects()


def end(client: Any) -> None:
    """Stops serving callbacks of a client's programs, and ends the threads."""
    if (callbacks := _served.pop(client, None)) is not None:
        callbacks.close()


def reason() -> str:
    """Returns why the last program with callbacks was left to JAX's client."""
    return _reason


class Callbacks:
    """The functions that programs of one session call."""

    def __init__(self, address: str, token: str | None, nonce: bytes) -> None:
        self._open = functools.partial(CallbackStream, address, token, nonce)
        self._lock = threading.Lock()
        self._stream: CallbackStream | None = None
        self._is_closed = False
        self._keys = itertools.count(1)
        self._functions: dict[int, Sequence[Callable[..., Any]]] = {}
        # Calls with incomplete data; used only by the thread that reads the stream.
        self._coming: dict[int, wire.Invocation] = {}
        self._lanes = Lanes()
        self._barrier: CallbackBarrier | None = None
        self._answered = 0
        self._process = os.getpid()

    def opened(self) -> bool:
        """Opens the stream if necessary; returns whether it is open."""
        global _reason  # noqa: PLW0603 - for the error that JAX's client raises next
        if self._process != os.getpid():
            # (A thread of the parent may have held the lock at the fork.)
            _reason = "the connection is that of the parent process"
            return False
        with self._lock:
            if self._is_closed:
                _reason = "the connection has ended"
                return False
            if self._barrier is None:
                self._barrier = CallbackBarrier()
            if self._stream is None:
                try:
                    self._lanes = Lanes()
                    self._stream = self._open(self._take, self._ended)
                except NotServed as error:
                    _reason = str(error)
                    return False
            return True

    def compile(
        self, compile_without: Callable[[Any], Any], module: Any, functions: Sequence[Any]
    ) -> Any:
        """Compiles a program whose functions stay here, and so do those that XLA calls meanwhile.

        The module is not changed, as JAX may keep it.
        """
        key = next(self._keys)
        copy = compile_calls.copied(module)
        asked = compile_calls.take(copy, len(functions))
        if not functions and not asked:
            return compile_without(module)
        served = compile_calls.Served()
        everything = (*functions, *map(served.here, asked))
        mark(copy, key, (*functions, *map(compile_calls.users, asked)))
        self._functions[key] = everything
        try:
            made = served.run(lambda: compile_without(copy)) if asked else compile_without(copy)
        except BaseException:
            self._functions.pop(key, None)
            raise
        if not functions:
            self._functions.pop(key, None)
        return made

    def await_effects(self) -> None:
        """Waits for programs that may still call functions, as long as some are called."""
        barrier = self._barrier if self._process == os.getpid() else None
        if barrier is not None and self._stream is not None:
            barrier.wait(lambda: self._answered)

    def close(self) -> None:
        """Ends the stream and the threads; running functions continue to their end."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._is_closed = True
            stream, self._stream = self._stream, None
            barrier, self._barrier = self._barrier, None
        if stream is not None:
            stream.close()
        if barrier is not None:
            barrier.close()
        self._functions.clear()

    def _ended(self) -> None:
        with self._lock:
            self._stream = None
        self._coming.clear()
        # Programs compiled earlier need it, too; the next compilation tries again.
        with contextlib.suppress(Exception):
            self.opened()

    def _take(self, raw: bytes) -> Callable[[], object] | None:
        try:
            return self._handle(wire.read(raw))
        except Exception:  # noqa: BLE001 - the thread reads on
            _log.exception("a message of the proxy about callbacks cannot be read")
            return None

    def _handle(self, message: Any) -> Callable[[], object] | None:
        """Processes a message; returns the function to call once a call is complete."""
        if isinstance(message, wire.Invocation):
            self._coming[message.call] = message
        elif isinstance(message, wire.Piece) and message.call in self._coming:
            self._coming[message.call].add(message.data)
        elif isinstance(message, wire.Cancelled):
            self._coming.pop(message.call, None)
        elif isinstance(message, wire.Dropped):
            self._functions.pop(message.program, None)
        call = self._coming.get(getattr(message, "call", 0))
        if call is None or not call.is_whole:
            return None
        del self._coming[call.call]
        context = callback_dispatch.newest_context()
        return self._lanes.enter(call.lane, lambda error: context.run(self._answer, call, error))

    def _answer(self, call: wire.Invocation, not_called: NotCalled | None) -> bool:
        """Calls a function and sends its results, or an error; returns whether it succeeded."""
        messages: Iterator[bytes]
        failed = False
        try:
            if not_called is not None:
                raise not_called
            function = self._functions[call.program][call.callback]
            _calling.here = True
            messages = iter(list(wire.answer(call.call, function(*call.arguments()))))
        except BaseException as error:  # noqa: BLE001 - raised where the program is waited for
            failed = True
            messages = iter([wire.failure(call.call, error)])
        finally:
            _calling.here = False
        stream = self._stream
        for message in messages:
            if stream is not None:
                stream.send(message)
        self._answered += 1  # (Only its growth matters.)
        return not failed


@functools.cache
def install() -> None:
    """Makes JAX compile programs with callbacks for proxies that serve them, permanently."""
    compiler: Any = importlib.import_module("jax._src.compiler")
    xla_bridge: Any = importlib.import_module("jax._src.xla_bridge")
    name = "backend_compile_and_load"
    # (Without it callbacks are refused as before, which is better than failing here.)
    if original := getattr(compiler, name, None):
        setattr(compiler, name, _compiled_with(original))
    callback_dispatch.install(lambda: bool(_served))
    xla_bridge.local_devices = _with_cpu(xla_bridge.local_devices)
    compile_calls.install()


def _compiled_with(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_and_load(
        backend: Any, module: Any, devices: Any, options: Any, host_callbacks: Any = ()
    ) -> Any:
        calls = host_callbacks or (_lookup(backend) and compile_calls.may_call(module))
        callbacks = _callbacks_of(backend) if calls else None
        if callbacks is None or not callbacks.opened():
            return original(backend, module, devices, options, host_callbacks)
        return callbacks.compile(
            lambda marked: original(backend, marked, devices, options, ()), module, host_callbacks
        )

    return compile_and_load


def _lookup(backend: Any) -> Callbacks | None:
    try:
        return _served.get(backend)
    except TypeError:  # without weak references it is not a proxy's client
        return None


def _callbacks_of(backend: Any) -> Callbacks | None:
    global _reason  # noqa: PLW0603 - see Callbacks.opened
    found = _lookup(backend)
    if found is None:
        _reason = _STRICT if backend in _refused else _OTHER
    return found


def _with_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the look-up of devices, so that callbacks find a CPU even if JAX is to have none.

    JAX puts the arguments of a callback on the local CPU; `local_devices=False` is meant for
    programs.
    """

    @functools.wraps(original)
    def local_devices(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError:
            backend = kwargs.get("backend", args[1] if len(args) > 1 else None)
            if backend != "cpu" or not getattr(_calling, "here", False):
                raise
            return local.hidden_cpu().local_devices()

    return local_devices
