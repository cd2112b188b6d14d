"""Views of a connection: its status and slices, as objects, text and HTML."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shared_pathways_service.errors import PlacementTimeout, SharedPathwaysError
from shared_pathways_service.events import rfc3339
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.session.messages import ENDING, RISING, Phase, SliceView, Snapshot

if TYPE_CHECKING:
    import jax

__all__ = [
    "ConnectedSlice",
    "ConnectionStatus",
    "Wait",
    "as_html",
    "not_placed",
    "slices_of",
    "slices_text",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectedSlice:
    """A virtual slice of the connection.

    Attributes:
      index: As in ``device.slice_index``.
      instance_type: e.g. ``tpuv6e:2x2``.
      state: ``queued``, ``unplaced`` or ``placed``.
      devices: JAX's devices of the slice.
    """

    index: int
    instance_type: str
    state: str
    devices: tuple[jax.Device, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionStatus:
    """The status of a connection.

    Attributes:
      state: The session's phase, e.g. ``serve``; ``new`` before the start; ``preempted`` while
        another tenant has its slices.
      placed: Whether all needed slices were placed, and were not taken since.
      position: Position in the queue, from 1; None if it is not queued.
      slices: State of each virtual slice, by index.
      starting: Generations of the placements whose executors are yet to start, by the index of the
        virtual slice: work for these waits.
      link: The resumable link to the proxy; None: it is not resumable, or was not lost yet.
      agent_alive: Whether the agent supervises the proxy.
      error: The connection's error; None if it did not fail.
    """

    name: str
    state: str
    placed: bool
    position: int | None
    slices: Mapping[int, str]
    starting: Mapping[int, int]
    link: LinkView | None
    agent_alive: bool
    error: SharedPathwaysError | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wait:
    """A connection's wait for its slices.

    Attributes:
      seconds: How long it has lasted; None: the process does not wait for it.
      positions: The first position in the queue, from 1; 0: it was not queued.
    """

    seconds: float | None = None
    positions: int = 0


def not_placed(snapshot: Snapshot, wanted: int, timeout: float) -> PlacementTimeout:
    """Returns the error of a connection whose slices were not placed in time."""
    return PlacementTimeout(
        f"{snapshot.name} was not placed within {timeout:g} s",
        placed=sum(view.state == "placed" for view in snapshot.slices),
        wanted=wanted,
        holders=snapshot.holders,
        hint="`sps status` shows who holds what",
    )


def slices_of(snapshot: Snapshot, devices: Sequence[jax.Device]) -> tuple[ConnectedSlice, ...]:
    """Returns the virtual slices, each with its devices, if any."""
    return tuple(
        ConnectedSlice(
            index=view.index,
            instance_type=view.instance_type,
            state=_state(snapshot, view),
            devices=tuple(d for d in devices if getattr(d, "slice_index", 0) == view.index),
        )
        for view in snapshot.slices
    )


def slices_text(snapshot: Snapshot) -> str:
    """Returns the slices in one line."""
    return ", ".join(f"{v.index}: {v.instance_type} {v.state}" for v in snapshot.slices)


def as_html(
    snapshot: Snapshot,
    address: str,
    since: Mapping[int, str],
    wait: Wait | None = None,
    release: str = "",
) -> str:
    """Returns the connection as HTML for a notebook.

    Args:
      snapshot: The connection's state.
      address: That of its proxy.
      since: The start of each slice's state.
      wait: Its wait; None: it does not wait.
      release: What a person types to release it.
    """
    rows = {"name": snapshot.name, "state": snapshot.state, "address": address or "-"}
    if snapshot.position is not None:
        rows["queue"] = f"position {snapshot.position}"
        if snapshot.holders:
            rows["held by"] = "; ".join(snapshot.holders)
    if snapshot.link is not None:
        rows["link"] = _link_text(snapshot.link)
    elif snapshot.pod and snapshot.phase is Phase.SERVE:
        rows["link"] = "up"
    if snapshot.error is not None:
        rows["error"] = str(snapshot.error.get("message", ""))
    if snapshot.left:
        rows["left behind"] = snapshot.left
    if release and snapshot.phase not in ENDING:
        rows["release"] = release
    head = "".join(_row("th", name, text) for name, text in rows.items())
    if wait is not None:
        head = _progress_row(snapshot, wait) + head
    slices = "".join(
        _row(
            "td",
            str(view.index),
            view.instance_type,
            _state(snapshot, view),
            since.get(view.index, ""),
        )
        for view in snapshot.slices
    )
    titles = "<tr><th>slice</th><th>type</th><th>state</th><th>since</th></tr>"
    return f"<table>{head}</table>" + (f"<table>{titles}{slices}</table>" if slices else "")


def _progress_row(snapshot: Snapshot, wait: Wait) -> str:
    """Returns the row with a bar: the way through the queue, or else through the steps."""
    if snapshot.position is not None:
        most = max(wait.positions, snapshot.position)
        done, text = most - snapshot.position, f"position {snapshot.position} in the queue"
    else:
        most = len(RISING)
        done = RISING.index(snapshot.phase) if snapshot.phase in RISING else 0
        text = "starting"
    if wait.seconds is not None:
        text += f", {wait.seconds:.0f} s; interrupt the cell to give up"
    bar = f'<progress aria-label="progress" max="{most}" value="{done}"></progress>'
    return f"<tr><th>progress</th><td>{bar} {text}</td></tr>"


def _link_text(link: LinkView) -> str:
    """Returns the link's state without its age, because a notebook shows it for long."""
    if link.resumed_at is not None:
        return f"up: {link.text(link.resumed_at)} at {rfc3339(link.resumed_at)}"
    return f"lost at {rfc3339(link.lost_at)}, {link.reconnection}"


def _state(snapshot: Snapshot, view: SliceView) -> str:
    return "queued" if snapshot.position is not None else view.state


def _row(first: str, name: str, *texts: str) -> str:
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
    return f"<tr><{first}>{html.escape(name)}</{first}>{cells}</tr>"
