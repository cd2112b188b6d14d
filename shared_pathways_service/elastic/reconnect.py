"""Continues on a new proxy after the old one has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import jax

from shared_pathways_service.elastic.slices import slice_index
from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["Reconnection", "reconnect_with", "starting_of"]

_log = logging.getLogger(__name__)


class _Status(Protocol):
    """The used part of `isc_pathways.ConnectionStatus`."""

    @property
    def starting(self) -> Mapping[int, int]: ...


class _Connection(Protocol):
    """The used part of `isc_pathways.Connection`."""

    @property
    def devices(self) -> tuple[jax.Device, ...]: ...

    def status(self) -> _Status: ...

    def start(self) -> object: ...

    def close(self) -> None: ...


class Reconnection:
    """Starts a connection again when it is called, and knows which of its slices start."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def __call__(self) -> Sequence[jax.Device]:
        """Returns the devices of the new proxy."""
        try:
            self._connection.close()
        except SharedPathwaysError as error:
            # The connection raises the reason of its end once, which is being survived.
            _log.warning("reconnecting: %s", error)
        self._connection.start()
        return self._connection.devices

    def starting(self) -> Mapping[int, int]:
        """Returns the placements whose executors do not serve yet, by ``slice_index``."""
        return self._connection.status().starting


def reconnect_with(connection: _Connection) -> Reconnection:
    """Returns a function for `Manager` to survive the end of a connection's proxy.

    The connection is closed and started again with the same request; its ``queue_timeout``
    determines whether it waits for slices that another tenant got meanwhile. Its events show the
    manager which slices do not answer because their executors start.

    Args:
      connection: A started connection of `isc_pathways.connect`.
    """
    return Reconnection(connection)


def starting_of(
    reconnect: Callable[[], Sequence[jax.Device]] | None,
    slices: Mapping[int, Sequence[jax.Device]],
) -> Callable[[], Mapping[int, int]]:
    """Returns a function for `Starts`; without a `Reconnection`, no slice starts for it.

    Args:
      reconnect: From `reconnect_with`, or another function.
      slices: The devices of each slice; the service knows it by the ``slice_index`` of these.
    """
    if not isinstance(reconnect, Reconnection):
        return dict
    index_of = {i: {slice_index(device) for device in devices} for i, devices in slices.items()}

    def starting() -> Mapping[int, int]:
        reported = reconnect.starting()
        return {i: reported[one] for i, own in index_of.items() for one in own if one in reported}

    return starting
