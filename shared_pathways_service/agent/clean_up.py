"""Starts an agent that deletes leftovers of earlier sessions, as listed in the journal."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.agent.launch import AGENT_COMMAND, launch_agent, let_linger
from shared_pathways_service.agent.messages import Decoder, MessageError, encode
from shared_pathways_service.errors import CleanupError, from_json
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.kube.handed_over import HandedOver
from shared_pathways_service.patience import timeouts

__all__ = ["clean_up_sessions", "left_over"]


def clean_up_sessions(
    journal: Path,
    sessions: Sequence[str],
    log: Path,
    command: Sequence[str] = AGENT_COMMAND,
    *,
    handed_over: HandedOver | None = None,
) -> CleanupError | None:
    """Has an agent delete these sessions; returns the error about leftovers, if any.

    `handed_over` is the program's own access to their cluster.
    """
    known = [name for name in sessions if Journal(journal).read(name)]
    if not known:
        return None
    process, sock = launch_agent(log, command)
    orders = {
        "type": "cleanup",
        "journal": str(journal),
        "sessions": known,
        "handed_over": dataclasses.asdict(handed_over) if handed_over else None,
    }
    try:
        with sock:
            sock.settimeout(timeouts.AGENT_CLEAN_UP.s)
            left = _receive_outcome(sock, orders)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeouts.AGENT_EXIT.s)
    finally:
        # An agent that still tries continues by itself, also after an interrupt here.
        if process.poll() is None:
            let_linger(process)
    return left


def _receive_outcome(sock: socket.socket, orders: Mapping[str, Any]) -> CleanupError | None:
    decoder = Decoder()
    with contextlib.suppress(OSError, MessageError):
        sock.sendall(encode(orders))
        while data := sock.recv(1 << 16):
            for message in decoder.feed(data):
                if message["type"] == "ended":
                    error = from_json(message["error"]) if message["error"] else None
                    return error if isinstance(error, CleanupError) else None
    return left_over(["what the journal names"])


def left_over(left: Sequence[str], whose: str = "", home: HomeChoice | None = None) -> CleanupError:
    """Returns the error for things of a session in a home, or of several, that may still exist."""
    command = home.command("delete", whose) if home else "sps reap"
    return CleanupError(
        f"{whose or 'the clean-up'}: not confirmed deleted: {'; '.join(left)}",
        left=left,
        command=command,
        hint=f"its agent goes on trying for a while; `sps list` shows what is left, `{command}` "
        "takes it down",
    )
