"""Continues on a new proxy after the old one has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import jax

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["reconnect_with"]

_log = logging.getLogger(__name__)


class _Connection(Protocol):
    """The used part of `isc_pathways.Connection`."""

    @property
    def devices(self) -> tuple[jax.Device, ...]: ...

    def start(self) -> object: ...

    def close(self) -> None: ...


def reconnect_with(connection: _Connection) -> Callable[[], Sequence[jax.Device]]:
    """Returns a function for `Manager` to survive the end of a connection's proxy.

    The connection is closed and started again with the same request; its ``queue_timeout``
    determines whether it waits for slices that another tenant got meanwhile.

    Args:
      connection: A started connection of `isc_pathways.connect`.
    """

    def connect_anew() -> Sequence[jax.Device]:
        try:
            connection.close()
        except SharedPathwaysError as error:
            # The connection raises the reason of its end once, which is being survived.
            _log.warning("reconnecting: %s", error)
        connection.start()
        return connection.devices

    return connect_anew
