"""What a connection shows of itself."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shared_pathways_service.core.session_messages import Snapshot
from shared_pathways_service.errors import SharedPathwaysError

if TYPE_CHECKING:
    import jax

__all__ = ["ConnectedSlice", "ConnectionStatus", "as_html", "slices_of", "slices_text"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectedSlice:
    """A virtual slice of the connection.

    Attributes:
      index: As in ``device.slice_index``.
      instance_type: e.g. ``tpuv6e:2x2``.
      state: ``queued``, ``unplaced`` or ``placed``.
      devices: Its devices, as JAX knows them.
    """

    index: int
    instance_type: str
    state: str
    devices: tuple[jax.Device, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionStatus:
    """How a connection stands.

    Attributes:
      state: The session's phase, e.g. ``serve``; ``new`` before the start.
      placed: Whether all slices that it needs were placed.
      position: In the queue, from 1; None when it does not wait there.
      slices: State of each virtual slice, by index.
      agent_alive: Whether the agent looks after the proxy.
      error: Why the connection failed; None when it did not.
    """

    name: str
    state: str
    placed: bool
    position: int | None
    slices: Mapping[int, str]
    agent_alive: bool
    error: SharedPathwaysError | None


def slices_of(snapshot: Snapshot, devices: Sequence[jax.Device]) -> tuple[ConnectedSlice, ...]:
    """Returns the virtual slices, each with its devices.

    Args:
      snapshot: How the session stands.
      devices: Of all slices; empty where JAX is not on the proxy.
    """
    queued = snapshot.position is not None
    return tuple(
        ConnectedSlice(
            index=view.index,
            instance_type=view.instance_type,
            state="queued" if queued else view.state,
            devices=tuple(d for d in devices if getattr(d, "slice_index", 0) == view.index),
        )
        for view in snapshot.slices
    )


def slices_text(snapshot: Snapshot) -> str:
    """Returns the slices in one line."""
    return ", ".join(f"{v.index}: {v.instance_type} {v.state}" for v in snapshot.slices)


def as_html(snapshot: Snapshot, address: str) -> str:
    """Returns the connection as a notebook shows it."""
    rows = {
        "name": snapshot.name,
        "state": snapshot.phase.value,
        "slices": slices_text(snapshot),
        "address": address or "-",
    }
    cells = "".join(
        f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items()
    )
    return f"<table>{cells}</table>"
