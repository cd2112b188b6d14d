"""Attackers: clients that try to use a server up. For tests and benchmarks of one's own servers.

`peer` is a connection that keeps to no rules, `kinds` has the attacks.
"""

from __future__ import annotations

from shared_pathways_service.testing.attacks.kinds import ATTACKS, Attack, Target

__all__ = ["ATTACKS", "Attack", "Target"]
