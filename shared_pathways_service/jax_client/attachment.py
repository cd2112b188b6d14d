"""Switches JAX of this process to a proxy, and restores it completely."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from shared_pathways_service.errors import ConnectionClosed, InvalidRequestError
from shared_pathways_service.jax_client.client_reference import HeldClient
from shared_pathways_service.jax_client.connection_errors import from_jax, session_held, unreachable
from shared_pathways_service.jax_client.plugin import held_session, plugin, sockets
from shared_pathways_service.jax_client.target import ProxyTarget

if TYPE_CHECKING:
    import jax

__all__ = ["Attachment", "attach"]

#: Minimum seconds of an attempt, however late it is.
_LEAST_S = 0.1
#: Also protects against a signal handler that ends the connection while it is being ended.
_switching = threading.RLock()
_live: Attachment | None = None


def attach(target: ProxyTarget, *, timeout: float) -> Attachment:
    """Switches JAX of this process over to a proxy, which must answer within a timeout.

    Until `Attachment.detach`, `jax.devices()` are the proxy's. After any error or interrupt JAX is
    as it was before.

    Raises:
      InvalidRequestError: JAX of this process already uses a proxy.
      TunnelError: The proxy cannot be reached, or does not answer in time.
      AccessDenied: The proxy refuses the token.
      VersionSkew: The proxy and this JAX have no common version, or this JAX cannot be switched.
      CredentialsMismatch: The proxy does not use plaintext and the target says so, or the reverse.
      ProxyFailed: The proxy answered with another error.
      CapacityError: The proxy serves one client at a time, and another one has its session.
    """
    global _live  # noqa: PLW0603 - JAX has one backend of that name a process
    with _switching:
        if _live is not None:
            raise InvalidRequestError(
                "connect",
                _live.target.address,
                "one live connection per process",
                message=f"JAX of this process already uses the proxy at {_live.target.address}",
                hint="close that connection first",
            )
        undo = contextlib.ExitStack()
        _live = attachment = Attachment(target, undo)
        try:
            held = attachment.held = _switch_over(target, undo, time.monotonic() + timeout)
        except BaseException:
            attachment.detach()
            raise
        for at_exit in (attachment.detach, held.expect_exit):  # the last one runs first
            undo.callback(atexit.unregister, at_exit)
            atexit.register(at_exit)
        return attachment


class Attachment:
    """JAX on a proxy, from `attach` to `detach`.

    Attributes:
      held: JAX's client; None: there is none yet.
    """

    def __init__(self, target: ProxyTarget, undo: contextlib.ExitStack) -> None:
        self.target = target
        self.held: HeldClient | None = None
        self._undo = undo
        self._process = os.getpid()

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The proxy's devices; raises ConnectionClosed if JAX was switched back."""
        if _live is not self:
            raise ConnectionClosed(f"JAX no longer uses the proxy at {self.target.address}")
        import jax  # noqa: PLC0415 - the package is imported without it

        return tuple(jax.devices("proxy"))

    def cut(self) -> None:
        """Ends the connection, so that waiting calls of JAX raise errors; `detach` must follow.

        May be called on any thread.
        """
        if self.held is not None:
            self.held.cut()

    def detach(self) -> None:
        """Switches JAX back and ends the connection; another call has no effect.

        Arrays of the proxy cannot be read afterwards, even if they are still referenced. In a
        forked child it has no effect, because the connection is the parent's.
        """
        global _live  # noqa: PLW0603 - see attach
        if self._process != os.getpid():
            return
        with _switching:
            undo, self._undo = self._undo, contextlib.ExitStack()
            undo.close()
            if _live is self:
                _live = None


def _switch_over(target: ProxyTarget, undo: contextlib.ExitStack, deadline: float) -> HeldClient:
    held = HeldClient(_peer_of(target, deadline))

    # Before the environment names the proxy: JAX reads its settings from there when it is imported,
    # and these settings are restored later.
    import jax  # noqa: PLC0415 - the package is imported without it

    for name, value in {**target.environment, **target.limits(os.environ)}.items():
        undo.callback(_set_variable, name, os.environ.get(name))
        _set_variable(name, value)

    from shared_pathways_service.jax_client import internals  # noqa: PLC0415

    internals.check()
    internals.discover_plugins()
    undo.callback(held.end)
    held.hold(_make_client(target, deadline))
    table = internals.BackendTable.now()
    undo.callback(table.restore)
    undo.callback(internals.abandon_backends)
    internals.leave_backends()
    internals.register(held.get, undo=undo)
    if target.local_devices:
        internals.add_local_cpu(table, undo=undo)
    _set_settings(target, undo)
    undo.callback(held.hang_up)
    jax.devices()
    return held


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _set_settings(target: ProxyTarget, undo: contextlib.ExitStack) -> None:
    """Sets JAX's settings that decide where it runs, or that a proxy does not support."""
    import jax  # noqa: PLC0415
    from jax.experimental.compilation_cache import compilation_cache  # noqa: PLC0415

    # JAX determines once whether the cache is on; after a reset it determines that again.
    undo.callback(compilation_cache.reset_cache)
    compilation_cache.reset_cache()
    settings = {
        "jax_platforms": target.platforms,
        "jax_backend_target": target.url,
        # Each would bypass the proxy: the first two name a platform, the third a device.
        "jax_platform_name": "",
        "jax_xla_backend": "",
        "jax_default_device": None,
        # A proxy's client cannot store compiled programs.
        "jax_enable_compilation_cache": False,
    }
    config: Any = jax.config
    for name, value in settings.items():
        undo.callback(config.update, name, config.values[name])
        config.update(name, value)


def _peer_of(target: ProxyTarget, deadline: float) -> sockets.Peer:
    """Returns the form in which connected sockets name the proxy; raises TunnelError."""
    try:
        return sockets.peer_at(target.address, max(_LEAST_S, deadline - time.monotonic()))
    except OSError as error:
        raise unreachable(target, error.strerror or str(error) or "no answer") from error


def _make_client(target: ProxyTarget, deadline: float) -> Any:
    """Returns JAX's client of the proxy; raises the errors of `attach`."""
    import jax  # noqa: PLC0415 - the package is imported without it

    def doubt() -> None:
        # The client retries on any error, and does not report it.
        from shared_pathways_service.jax_client.refusal import reason_of  # noqa: PLC0415 - gRPC

        if reason := reason_of(target, max(_LEAST_S, deadline - time.monotonic())):
            raise reason

    remaining = max(_LEAST_S, deadline - time.monotonic())
    try:
        return plugin.connect(
            target.url,
            token=target.token,
            timeout=remaining,
            transfer_dir=target.transfer_dir,
            doubt=doubt,
        )
    except held_session.SessionHeldError as error:
        raise session_held(error) from error
    except TimeoutError as error:
        raise unreachable(target, "it does not answer in time") from error
    except jax.errors.JaxRuntimeError as error:
        raise from_jax(target, str(error)) from error
