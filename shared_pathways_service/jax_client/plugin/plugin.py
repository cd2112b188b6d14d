"""The plug-in: lets JAX use a Pathways proxy by its environment alone.

JAX calls `initialize` when it first discovers its backends. A program that does not know this
project then runs on a proxy if its environment says so:

    JAX_PLATFORMS=proxy JAX_BACKEND_TARGET=grpc://unix:/path SPS_TOKEN_FILE=/path program

`sps run` puts a copy of this folder on PYTHONPATH, for environments without the package. With the
package, JAX finds this file by its entry point; having both is harmless.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import functools
import importlib
import math
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import (
    callbacks,
    dumps,
    explaining,
    forked,
    greeting,
    held_session,
    local,
    quiet,
    run_notes,
    strict,
    traced_proxies,
    transfer_files,
    workarounds,
)
from .timeout_table import timeouts

PLATFORM = local.PLATFORM
#: JAX's client uses plaintext only if this is exactly ``true`` while it is created, otherwise ALTS.
INSECURE_VARIABLE = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
TOKEN_VARIABLE = "SPS_TOKEN_FILE"  # noqa: S105 - the name of a variable
#: Data that the client sends to the proxy when it connects, in addition to JAX's own.
TOKEN_KEY = "sps_token"  # noqa: S105 - the name of a field
#: Names a directory in memory that this process shares with the proxy for large buffers.
TRANSFER_VARIABLE = "SPS_TRANSFER_DIR"
TRANSFER_KEY = "sps_transfer_dir"
TRANSFER_SETTINGS = transfer_files.SETTINGS
#: Stands for ``grpc`` in the environment of programs of `sps run` and of child processes of
#: `connect()`, whose proxy wants a token. JAX's own client knows no such transport: a Python that
#: does not load this plug-in gets an error at once, and not after the two minutes for which that
#: client tries to connect without a token.
TRANSPORT = "sps-jax-plugin"
#: What a program needs to use the proxy; a launcher that cleans the environment has to pass it on.
PASSED_ON = ("JAX_*", "SPS_*", "IFRT_PROXY_*", "PYTHONPATH")
JAXLIB_VERSION_KEY = "sps_jaxlib_version"
#: Seconds within which an answer normally arrives; and seconds for an answer in any case.
_SOON_S = 1.0
#: Seconds of the first attempt, and at most: each further one has twice as many.
_FIRST_ATTEMPT_S = 2
_LONGEST_ATTEMPT_S = 16
_THREAD = "sps-proxy-connect"
#: When the present attempts of threads end at the latest, on the monotonic clock.
_attempts_end_at: dict[threading.Thread, float] = {}


def initialize() -> None:
    """Registers the backend ``proxy`` if JAX's settings request it; JAX calls this."""
    _note_platforms()
    if _wanted_target() is None:
        return
    from jax.extend import backend  # noqa: PLC0415 - 40 ms that other programs need not pay

    # Replaces a factory that another library registered: only this one knows the token.
    backend.register_backend_factory(PLATFORM, _client_of_settings, priority=-1)
    if local.CPU in _wanted_platforms()[_wanted_platforms().index(PLATFORM) :]:
        local.add_lazily()


def _note_platforms() -> None:
    """Handles a choice of platforms that the program made after `sps run` started it."""
    given = os.environ.get(run_notes.PLATFORMS_VARIABLE)
    if not given or PLATFORM in _wanted_platforms():
        return
    if _config().jax_platforms:
        run_notes.note_elsewhere(f"jax_platforms={_config().jax_platforms!r}")
    else:
        # JAX then chooses, and would try the proxy without its token.
        _config().update("jax_platforms", given)


def connect(
    target: str,
    *,
    token: str | None,
    timeout: float,
    transfer_dir: Path | None = None,
    doubt: Callable[[], object] = lambda: None,
) -> Any:
    """Returns JAX's client of the proxy at an address.

    Waits in a separate thread: the library's call cannot be interrupted, but this wait can. If the
    caller has given up, the client is dropped at once.

    Args:
      target: ``grpc://unix:/path`` or ``grpc://host:port``.
      token: The token for the proxy; None: none.
      timeout: Seconds to wait.
      transfer_dir: A directory in memory that this machine and the proxy share: the client puts
        large buffers into its own directory there, which the proxy removes when the connection
        ends. This sets `TRANSFER_SETTINGS`, which must remain as long as the client. None: buffers
        are sent on the stream. (See `transfer_files`.)
      doubt: Called once if there is no answer soon; an error that it raises ends the wait.

    Raises:
      held_session.SessionHeldError: The proxy serves one client, and another one has the session.
      TimeoutError: The proxy did not answer in time.
      jax.errors.JaxRuntimeError: The proxy could not be reached, or refused.
      RuntimeError: This process was forked from one that was connected.
    """
    forked.check_not_forked()
    explaining.explain()
    workarounds.install()
    callbacks.install()
    traced_proxies.install()
    if token is not None:  # a proxy of this project
        dumps.warn_of_options()
    answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
    deadline = time.monotonic() + timeout
    given_up = threading.Event()
    refusals = held_session.Refusals(target)

    def call() -> None:
        quiet.suppress()
        settle = quiet.restore
        patience = _FIRST_ATTEMPT_S
        while True:
            _attempts_end_at[threading.current_thread()] = time.monotonic() + patience
            try:
                client = _get_client(target, token, transfer_dir, patience)
            except Exception as error:  # noqa: BLE001 - raised where the answer is read
                # The library retries on any error, and cannot be stopped: attempts are short, so
                # that an abandoned one ends soon.
                refusals.note(error)
                over = given_up.is_set() or time.monotonic() > deadline
                if over or not str(error).startswith("UNAVAILABLE"):
                    answer.set_exception(error)
                    break
            else:
                local.claim(client)
                forked.watch(client, target.removeprefix("grpc://"))
                if not given_up.is_set():
                    settle = quiet.suppress_refusals
                    answer.set_result(client)
                break
            # (An attempt that began late is not to last much longer than the wait.)
            left = math.ceil(deadline - time.monotonic())
            patience = max(_FIRST_ATTEMPT_S, min(2 * patience, _LONGEST_ATTEMPT_S, left))
        del _attempts_end_at[threading.current_thread()]
        settle()

    _await_attempts_at_exit()
    threading.Thread(target=call, name=_THREAD, daemon=True).start()
    try:
        with contextlib.suppress(TimeoutError):
            return answer.result(min(_SOON_S, timeout))
        doubt()
        with refusals.explained():
            return answer.result(max(0, deadline - time.monotonic()))
    finally:
        given_up.set()


@functools.cache
def _await_attempts_at_exit() -> None:
    """Makes this process end only after its abandoned attempts, which would abort it."""

    def wait() -> None:
        # The library's time does not depend on our patience, so ours is not shortened.
        late_s = max(timeouts.PLUGIN_LAST_ATTEMPT.seconds, timeouts.PLUGIN_LAST_ATTEMPT.s)
        for thread, end_at in list(_attempts_end_at.items()):
            thread.join(max(0.0, end_at - time.monotonic()) + late_s)

    atexit.register(wait)


def _get_client(target: str, token: str | None, transfer_dir: Path | None, timeout: int) -> Any:
    import jaxlib  # noqa: PLC0415 - see initialize
    from jax.extend.backend import ifrt_proxy  # noqa: PLC0415

    # The options must not contain a Python callback: the thread that calls it would abort a process
    # that ends while the client lives.
    options = ifrt_proxy.ClientConnectionOptions()
    options.connection_timeout_in_seconds = timeout
    is_strict = strict.is_wanted()
    nonce = secrets.token_bytes(callbacks.NONCE_BYTES)
    data: dict[str, bytes | bool | int] = {
        JAXLIB_VERSION_KEY: jaxlib.__version__.encode(),
        callbacks.NONCE_KEY: nonce,
    }
    if token is not None:
        data[TOKEN_KEY] = token.encode()
    mine = transfer_files.share(transfer_dir)
    if mine is not None:
        data[TRANSFER_KEY] = mine.name.encode()
    options.initialization_data = data
    try:
        client = ifrt_proxy.get_client(target, options)
    except Exception:
        if mine is not None:
            # A proxy that was not reached will not remove it. (The settings remain: they may be
            # those of a connection made meanwhile.)
            transfer_files.end(mine)
            with contextlib.suppress(OSError):
                mine.rmdir()
        raise
    traced_proxies.serve(client, target.removeprefix("grpc://"), token)
    if is_strict:
        callbacks.refuse(client)
        local.treat_as_accelerator(client)
    else:
        callbacks.serve(client, target.removeprefix("grpc://"), token, nonce)
    return client


def ignore_proxy(register: Callable[..., None]) -> Callable[..., None]:
    """Wraps JAX's registration of backends, ignoring ``proxy``.

    Libraries for Pathways register their own factory of that name, which JAX refuses once the
    backend exists; the existing connection works for them, too.
    """

    @functools.wraps(register)
    def registration(name: str, *args: Any, **kwargs: Any) -> None:
        if name != PLATFORM:
            register(name, *args, **kwargs)

    return registration


def _client_of_settings() -> Any:
    """Creates the client that the settings describe: the factory that JAX calls."""
    target = _wanted_target()
    if target is None:
        raise RuntimeError("JAX_PLATFORMS and JAX_BACKEND_TARGET do not name a proxy")
    if _wants_token(_spelled_target()) and not os.environ.get(TOKEN_VARIABLE):
        # The proxy would refuse each attempt, and JAX's client does not report why.
        raise RuntimeError(
            f"{TOKEN_VARIABLE} is not set, without which the proxy at {target} refuses this "
            "process: what started it has dropped variables. Make it pass on "
            f"{', '.join(PASSED_ON)} (tox: pass_env, bazel: --test_env, sbatch: --export)"
        )
    token = None
    if path := os.environ.get(TOKEN_VARIABLE):
        token = Path(path).read_text(encoding="ascii").strip()
        if warning := dumps.ignored_flags():
            warnings.warn(warning, stacklevel=2)
    transfer_dir = Path(named) if (named := os.environ.get(TRANSFER_VARIABLE)) else None
    try:
        with _credentials():
            client = connect(
                target,
                token=token,
                timeout=timeouts.PLUGIN_CONNECT.s,
                transfer_dir=transfer_dir,
                doubt=functools.partial(_check_plaintext, target),
            )
    except held_session.SessionHeldError as error:
        raise RuntimeError(f"{error}: {held_session.HINT}") from error
    except TimeoutError as error:
        raise RuntimeError(
            f"the proxy at {target} did not answer in time: it may have ended, or have as many "
            "sessions as allowed (--max_sessions); see its log"
        ) from error
    atexit.register(quiet.suppress)
    run_notes.note_use()
    local.warn_of_settings()
    # JAX's own name for it, and the one that other libraries use.
    for name in ("jax._src.xla_bridge", "jax.extend.backend"):
        module: Any = importlib.import_module(name)
        module.register_backend_factory = ignore_proxy(module.register_backend_factory)
    return client


def _check_plaintext(target: str) -> None:
    """Raises an error if the proxy hangs up on this process's plaintext client."""
    if os.environ.get(INSECURE_VARIABLE) != "true":
        return
    if greeting.refuses_plaintext(target.removeprefix("grpc://"), timeouts.PLUGIN_PROBE.s):
        raise RuntimeError(
            f"the proxy at {target} hangs up on plaintext gRPC, which this client uses "
            f"({INSECURE_VARIABLE}=true): start the proxy with {INSECURE_VARIABLE}=true too; or, "
            f"on a machine of Google Cloud, set {INSECURE_VARIABLE}=false here for ALTS"
        )


@contextlib.contextmanager
def _credentials() -> Iterator[None]:
    """Makes the client use plaintext while it is created, unless the environment says ``false``."""
    had = os.environ.get(INSECURE_VARIABLE)
    if had not in (None, "true", "false"):
        # The library would silently take it for false.
        raise RuntimeError(
            f"{INSECURE_VARIABLE}={had!r} is not valid: expected 'true' for plaintext, or 'false' "
            "for Google's default, ALTS, in lower case"
        )
    os.environ[INSECURE_VARIABLE] = had or "true"
    try:
        yield
    finally:
        if had is None:
            os.environ.pop(INSECURE_VARIABLE, None)


def _wanted_target() -> str | None:
    if not _config().read("jax_backend_target") or PLATFORM not in _wanted_platforms():
        return None
    named = _spelled_target()
    return f"grpc://{named.partition('://')[2]}" if _wants_token(named) else named


def _spelled_target() -> str:
    """Returns the proxy as the settings name it."""
    target: str = _config().read("jax_backend_target")
    # JAX lower-cases the variable's value; a path may have capitals.
    spelled = os.environ.get("JAX_BACKEND_TARGET", "")
    return spelled if spelled.lower() == target else target


def _wants_token(target: str) -> bool:
    return target.lower().startswith(f"{TRANSPORT}://")


def _wanted_platforms() -> list[str]:
    return (_config().jax_platforms or "").split(",")


def _config() -> Any:
    import jax  # noqa: PLC0415 - is imported already when JAX calls

    return jax.config
