"""Services in the states from which tests of policies start."""

from __future__ import annotations

import math
from typing import Any

from shared_pathways_service.scheduling.book.states import TenantState
from tests.scheduling.harness import Rm

GRACE_S = 30.0
HOUR = 3600.0
WAITS = math.inf


def held(slices: int = 2, **config: Any) -> Rm:
    """A service whose slices low-1, low-2, … hold, one each."""
    rm = Rm(slices, **config)
    for number in range(1, slices + 1):
        rm.ask(f"low-{number}", 1)
    rm.said.clear()
    return rm


def state(rm: Rm, tenant: str) -> TenantState:
    return rm.tenant(tenant).state


def noticed(rm: Rm) -> dict[str, str]:
    """Returns who is under notice, and by whom."""
    return {t.name: t.preempting_by for t in rm.core.status(rm.now).tenants if t.preempting_by}
