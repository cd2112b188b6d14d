"""The one reference to JAX's client of a proxy that this package keeps, and its end."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from typing import TYPE_CHECKING, Any

from shared_pathways_service.errors import ConnectionClosed
from shared_pathways_service.jax_client.plugin import callbacks, quiet, sockets

if TYPE_CHECKING:
    import jax

__all__ = ["HeldClient"]

_log = logging.getLogger(__name__)

#: Seconds for the sockets to close once nothing refers to the client any more.
_CLOSING_S = 15.0
#: Arrays that a warning lists.
_LISTED = 3


class HeldClient:
    """Holds the client until `hang_up`, which ends its connection; `end` tells what held it on."""

    def __init__(self, peer: sockets.Peer) -> None:
        self._peer = peer
        self._client: Any = None
        self._seen: weakref.ref[Any] | None = None
        self._exiting = False

    def hold(self, client: Any) -> None:
        """Keeps the client."""
        self._client = client
        self._seen = weakref.ref(client)

    def get(self) -> Any:
        """Returns the client: the factory that JAX calls.

        Raises:
          ConnectionClosed: It was dropped.
        """
        if self._client is None:
            raise ConnectionClosed("the connection to the proxy has ended")
        return self._client

    def hang_up(self) -> None:
        """Waits for what programs still print; ends the connection, then lets go of the client.

        In this order: a client that is destroyed while answers to it are still on their way
        (to deletions of arrays, mostly) now and then corrupts its own locks and aborts the process
        (jaxlib 0.10.2, one in tens of times on a busy machine). One that was hung up on does not.
        """
        try:
            # (An interrupt wants no waiting.)
            if isinstance(sys.exception(), Exception | None):
                callbacks.await_effects(self._client)
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        quiet.hush()
        callbacks.end(self._client)
        if not sockets.shut_down(self._peer, _CLOSING_S):
            _log.warning("the connection to the proxy is not closed after %g s", _CLOSING_S)
        self._client = None

    def expect_exit(self) -> None:
        """Says that the process ends: nobody will read what is on the proxy."""
        self._exiting = True

    def end(self) -> None:
        """Makes sure that nothing is left of the connection, and tells of arrays lost."""
        if self._seen is None:
            # Attempts to get a client, in a thread that ends by itself.
            sockets.shut_down(self._peer, 0)
            return
        if self._client is not None:
            self.hang_up()
        gc.collect()
        client = self._seen()
        if client is None:
            quiet.unhush()
            return
        # Hushed for good: it warns again whenever one of what still refers to it goes.
        # An exception on its way out refers to what its frames hold: nobody forgot that.
        if not self._exiting and sys.exception() is None:
            _tell(_live_arrays(client))


def _live_arrays(client: Any) -> list[jax.Array]:
    return [a for a in client.live_arrays() if not a.is_deleted()] if client else []


def _tell(arrays: list[jax.Array]) -> None:
    if not arrays:
        _log.info(
            "the connection to the proxy was still referred to, and is shut down; "
            "a device, Mesh, sharding or compiled function refers to it"
        )
        return
    shapes = ", ".join(a.aval.str_short() for a in arrays[:_LISTED])
    _log.warning(
        "%d arrays on the service (%s%s) are still referred to and cannot be read any more; "
        "copy what shall outlive the connection with jax.device_get before it ends",
        len(arrays),
        shapes,
        ", ..." if len(arrays) > _LISTED else "",
    )
