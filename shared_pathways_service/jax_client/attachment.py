"""JAX of this process on a proxy, and off it again, everything put back."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from shared_pathways_service.errors import ConnectionClosed, InvalidRequestError
from shared_pathways_service.jax_client.client_reference import HeldClient
from shared_pathways_service.jax_client.reaching import make_client, peer_of
from shared_pathways_service.jax_client.target import ProxyTarget

if TYPE_CHECKING:
    import jax

__all__ = ["Attachment", "attach"]

#: Of a signal handler, too, that ends the connection while it is being ended.
_switching = threading.RLock()
_live: Attachment | None = None


def attach(target: ProxyTarget, *, timeout: float) -> Attachment:
    """Switches JAX of this process over to a proxy.

    Until `Attachment.detach`, `jax.devices()` are the proxy's. Whatever goes wrong, an interrupt
    too, leaves JAX as it was.

    Args:
      target: The proxy.
      timeout: Seconds for it to answer.

    Raises:
      InvalidRequestError: JAX of this process is on a proxy already.
      TunnelError: The proxy cannot be reached, or does not answer in time.
      AccessDenied: It refuses the token.
      VersionSkew: It and this JAX have no version in common, or this JAX cannot be switched.
      CredentialsMismatch: It does not speak plaintext and the target says so, or the other way
        round.
      ProxyFailed: It answered with another error.
    """
    global _live  # noqa: PLW0603 - JAX has one backend of that name a process
    with _switching:
        if _live is not None:
            raise InvalidRequestError(
                "connect",
                _live.target.address,
                "one live connection a process",
                message=f"JAX of this process is on the proxy at {_live.target.address} already",
                hint="close that connection first",
            )
        undo = contextlib.ExitStack()
        _live = attachment = Attachment(target, undo)
        try:
            held = _switch_over(target, undo, time.monotonic() + timeout)
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
      target: The proxy.
    """

    def __init__(self, target: ProxyTarget, undo: contextlib.ExitStack) -> None:
        self.target = target
        self._undo = undo
        self._process = os.getpid()

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The proxy's devices.

        Raises:
          ConnectionClosed: JAX was switched back.
        """
        if _live is not self:
            raise ConnectionClosed(f"JAX is no longer on the proxy at {self.target.address}")
        import jax  # noqa: PLC0415 - the package is imported without it

        return tuple(jax.devices("proxy"))

    def detach(self) -> None:
        """Switches JAX back and ends the connection; again, it does nothing.

        Arrays of the proxy cannot be read afterwards, whoever refers to them. In a forked child
        it does nothing either: the connection is the parent's.
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
    held = HeldClient(peer_of(target, deadline))

    # Before the environment names the proxy: JAX takes its settings from there when it is imported,
    # and they are what is put back.
    import jax  # noqa: PLC0415 - the package is imported without it

    for name, value in target.environment.items():
        undo.callback(_set_variable, name, os.environ.get(name))
        _set_variable(name, value)

    from shared_pathways_service.jax_client import internals  # noqa: PLC0415

    internals.check()
    internals.discover_plugins()
    undo.callback(held.end)
    held.hold(make_client(target, deadline))
    table = internals.BackendTable.now()
    undo.callback(table.put_back)
    undo.callback(internals.abandon_backends)
    internals.leave_backends()
    internals.register(held.get, undo=undo)
    if target.local_devices:
        internals.put_cpu_beside(table, undo=undo)
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
    """Sets what of JAX's settings decides where it runs, and what a proxy has no use for."""
    import jax  # noqa: PLC0415
    from jax.experimental.compilation_cache import compilation_cache  # noqa: PLC0415

    # JAX looks once whether the cache is on; asked again, it looks again.
    undo.callback(compilation_cache.reset_cache)
    compilation_cache.reset_cache()
    settings = {
        "jax_platforms": target.platforms,
        "jax_backend_target": target.url,
        # Each would lead around the proxy: the first two name a platform, the third a device.
        "jax_platform_name": "",
        "jax_xla_backend": "",
        "jax_default_device": None,
        # Programs compiled by a proxy cannot be stored by its client.
        "jax_enable_compilation_cache": False,
    }
    config: Any = jax.config
    for name, value in settings.items():
        undo.callback(config.update, name, config.values[name])
        config.update(name, value)
