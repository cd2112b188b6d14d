"""Holds this package's only reference to JAX's client of a proxy, and ends the client."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from typing import TYPE_CHECKING, Any

from shared_pathways_service.errors import ConnectionClosed
from shared_pathways_service.jax_client.plugin import (
    callbacks,
    quiet,
    sockets,
    traced_proxies,
    transfer_files,
)
from shared_pathways_service.patience import timeouts

if TYPE_CHECKING:
    import jax

__all__ = ["HeldClient"]

_log = logging.getLogger(__name__)

#: Arrays that a warning lists.
_LISTED = 3


class HeldClient:
    """Holds the client until `hang_up` ends its connection; `end` reports remaining references."""

    def __init__(self, peer: sockets.Peer) -> None:
        self._peer = peer
        self._client: Any = None
        self._seen: weakref.ref[Any] | None = None
        self._exiting = False

    def hold(self, client: Any) -> None:
        """Stores the client."""
        self._client = client
        self._seen = weakref.ref(client)

    def get(self) -> Any:
        """Returns the client: the factory that JAX calls; raises ConnectionClosed after the end."""
        if self._client is None:
            raise ConnectionClosed("the connection to the proxy has ended")
        return self._client

    def cut(self) -> None:
        """Ends the connection from any thread, so that JAX's waits end with errors."""
        quiet.suppress()
        sockets.shut_down(self._peer, 0)

    def hang_up(self) -> None:
        """Waits for output of programs, ends the connection, and then releases the client.

        In this order: a client that is destroyed while answers are in flight (mostly to deletions
        of arrays) sometimes corrupts its own locks and aborts the process (jaxlib 0.10.2, one in
        tens of times on a busy machine). A client whose connection was closed before does not.
        """
        try:
            # (After an interrupt there is no waiting.)
            if isinstance(sys.exception(), Exception | None):
                callbacks.await_effects(self._client)
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        quiet.suppress()
        callbacks.end(self._client)
        traced_proxies.end(self._client)
        transfer_files.end()
        if not sockets.shut_down(self._peer, timeouts.CLIENT_CLOSE.s):
            _log.warning(
                "the connection to the proxy was not closed within %g s", timeouts.CLIENT_CLOSE.s
            )
        self._client = None

    def expect_exit(self) -> None:
        """Records that the process ends, so that data on the proxy is not needed any more."""
        self._exiting = True

    def end(self) -> None:
        """Makes sure that nothing is left of the connection, and warns about lost arrays."""
        if self._seen is None:
            # Attempts to create a client, in a thread that ends by itself.
            sockets.shut_down(self._peer, 0)
            return
        if self._client is not None:
            self.hang_up()
        gc.collect()
        client = self._seen()
        if client is None:
            quiet.restore()
            return
        # Suppressed permanently: it warns again whenever a remaining object is released.
        # A propagating exception references objects in its frames: that is not a leak.
        if not self._exiting and sys.exception() is None:
            _warn(_live_arrays(client))


def _live_arrays(client: Any) -> list[jax.Array]:
    return [a for a in client.live_arrays() if not a.is_deleted()] if client else []


def _warn(arrays: list[jax.Array]) -> None:
    if not arrays:
        _log.info(
            "the connection to the proxy was still referenced, and is shut down; "
            "a device, Mesh, sharding or compiled function references it"
        )
        return
    one = len(arrays) == 1
    shapes = ", ".join(a.aval.str_short() for a in arrays[:_LISTED])
    _log.warning(
        "%s on the service (%s%s) %s still referenced and can no longer be read; "
        "copy %s with jax.device_get before the connection ends",
        "1 array" if one else f"{len(arrays)} arrays",
        shapes,
        ", ..." if len(arrays) > _LISTED else "",
        "is" if one else "are",
        "it" if one else "them",
    )
