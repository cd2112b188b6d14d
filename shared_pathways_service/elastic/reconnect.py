"""Goes on after the proxy has died: a new one, on the same service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import jax

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["reconnect_with"]

_log = logging.getLogger(__name__)


class _Connection(Protocol):
    """What is used of `isc_pathways.Connection`."""

    @property
    def devices(self) -> tuple[jax.Device, ...]: ...

    def start(self) -> object: ...

    def close(self) -> None: ...


def reconnect_with(connection: _Connection) -> Callable[[], Sequence[jax.Device]]:
    """Returns what `Manager` needs to survive the death of a connection's proxy.

    The connection is closed and started again, with all that it was asked for; whether slices that
    somebody else got meanwhile are waited for is said by its ``queue_timeout``.

    Args:
      connection: Of `isc_pathways.connect`, started.
    """

    def connect_anew() -> Sequence[jax.Device]:
        try:
            connection.close()
        except SharedPathwaysError as error:
            # It tells why it died, once; that is what is being survived.
            _log.warning("connecting anew: %s", error)
        connection.start()
        return connection.devices

    return connect_anew
