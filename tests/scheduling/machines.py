"""The state machine of `test_properties`, for sequences of its steps that are written down."""

from __future__ import annotations

from tests.scheduling.test_properties import ResourceManagerMachine

__all__ = ["begun"]


def begun(
    *,
    spares: int = 0,
    ready: int = 0,
    small: int = 2,
    first_start: bool = True,
    grace_s: float = 0.0,
    idle_s: tuple[float, float] | None = None,
    executors: bool = False,
) -> ResourceManagerMachine:
    """Returns one that has begun, without aging."""
    machine = ResourceManagerMachine()
    machine.begin(
        spares=spares,
        ready=ready,
        small=small,
        first_start=first_start,
        grace_s=grace_s,
        aging_s=None,
        idle_s=idle_s,
        executors=executors,
    )
    return machine
