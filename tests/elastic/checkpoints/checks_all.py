"""All modules of checks of checkpoints: importing this fills `CHECKS`."""

from __future__ import annotations

from tests.elastic.checkpoints import checkpoint_checks, checks_damage, checks_saving
from tests.elastic.checkpoints.states import CHECKS

__all__ = ["CHECKS", "MODULES"]

MODULES = (checkpoint_checks, checks_damage, checks_saving)
