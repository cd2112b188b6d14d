"""What `stress.attack` compares attacks with."""

from __future__ import annotations

import time

from shared_pathways_service.testing.attacks import Attack, Target
from shared_pathways_service.testing.attacks.peer import Peer

__all__ = ["Computing"]


class Computing(Attack):
    """A client that attacks no server, and only uses its processor."""

    name = "computing"

    def __init__(self, target: Target, _size: int) -> None:
        super().__init__(target, 0)

    def begin(self, peer: Peer) -> None:
        """Does nothing: there are no connections."""

    def press(self) -> None:
        """Computes for a moment."""
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:
            pass
