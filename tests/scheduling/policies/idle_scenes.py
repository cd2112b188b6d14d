"""Services with a tenant that does not work."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.scheduling.book.states import TenantState
from tests.scheduling.harness import Rm

RELEASE_S = 600.0
WARNING_S = 60.0


def service(slices: int = 1, **config: Any) -> Rm:
    times = {"idle_release_s": RELEASE_S, "idle_warning_s": WARNING_S}
    return Rm(slices, **{**times, **config})


def running(slices: int = 1, **config: Any) -> Rm:
    """A service whose tenant `ada` has worked once, just now, and holds all slices."""
    rm = service(slices, **config)
    rm.ask("ada", slices)
    rm.tell("ada", 1)
    rm.said.clear()
    return rm


def warned(**config: Any) -> Rm:
    rm = running(**config)
    rm.after(RELEASE_S - WARNING_S)
    return rm


def parked(**config: Any) -> Rm:
    rm = warned(**config)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.said.clear()
    rm.after(WARNING_S)
    assert rm.tenant("ada").state is TenantState.IDLE
    rm.said.clear()
    return rm
