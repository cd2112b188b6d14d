"""Injects faults for tests of elastic training, addressed by slice and step.

A `Plan` holds faults and fires each at its moment. A *world* has the slices that faults act on:
`SimulatedSlices` (any devices; nothing real is harmed) or `EmbeddedSlices` (workers of a running
embedded service). A test asserts that its faults fired: `Plan.assert_fired`.
"""

from __future__ import annotations

from shared_pathways_service.testing.faults.embedded import EmbeddedSlices
from shared_pathways_service.testing.faults.plan import (
    Fault,
    Plan,
    World,
    corrupt_newest,
    fail_at,
    flap,
    hang,
    kill,
    kill_process,
    lie,
    on_event,
    revive,
)
from shared_pathways_service.testing.faults.simulated import SimulatedSlices

__all__ = [
    "EmbeddedSlices",
    "Fault",
    "Plan",
    "SimulatedSlices",
    "World",
    "corrupt_newest",
    "fail_at",
    "flap",
    "hang",
    "kill",
    "kill_process",
    "lie",
    "on_event",
    "revive",
]
