"""Simulates clients that exhaust a server's resources, to test and benchmark our own servers.

`peer` is a connection without protocol checks, `kinds` has the attacks.
"""

from __future__ import annotations

from shared_pathways_service.testing.attacks.kinds import ATTACKS, Attack, Target

__all__ = ["ATTACKS", "Attack", "Target"]
