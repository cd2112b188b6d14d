"""Attackers: clients that try to exhaust a server, for tests and benchmarks of one's own servers.

- `peer`: a connection that follows no rules
- `kinds`: the attacks
"""

from __future__ import annotations

from shared_pathways_service.testing.attacks.kinds import ATTACKS, Attack, Target

__all__ = ["ATTACKS", "Attack", "Target"]
