"""Elastic training: a lost slice is a short rewind in the same process.

    from shared_pathways_service import elastic

    def train(attempt: elastic.Attempt): ...

    manager = elastic.Manager(options=elastic.Options(elastic_min_slice_count=2), directory="run")
    manager.run(train)

Works on any JAX devices that can be grouped into slices. What is decided is in `core.elastic`; here
is what acts: running, probing, keeping state. Names are looked up when used: who only reads a run's
ledger needs no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shared_pathways_service.core.elastic.options import Options
    from shared_pathways_service.elastic.attempt import Attempt
    from shared_pathways_service.elastic.checkpoint_errors import (
        CheckpointError,
        CheckpointMismatch,
        CheckpointNotFound,
        CheckpointsBusy,
    )
    from shared_pathways_service.elastic.checkpoints import Checkpoints
    from shared_pathways_service.elastic.data import Batches
    from shared_pathways_service.elastic.errors import ElasticRuntimeError, ScaleUpSignalError
    from shared_pathways_service.elastic.health_checks import (
        get_active_slice_indices,
        get_slice_to_devices,
        is_error_due_to_slice_down,
        wait_for_slices,
    )
    from shared_pathways_service.elastic.manager import ElasticRetryLimit, Manager
    from shared_pathways_service.elastic.progress import Progress
    from shared_pathways_service.elastic.reconnect import reconnect_with

__all__ = [
    "Attempt",
    "Batches",
    "CheckpointError",
    "CheckpointMismatch",
    "CheckpointNotFound",
    "Checkpoints",
    "CheckpointsBusy",
    "ElasticRetryLimit",
    "ElasticRuntimeError",
    "Manager",
    "Options",
    "Progress",
    "ScaleUpSignalError",
    "get_active_slice_indices",
    "get_slice_to_devices",
    "is_error_due_to_slice_down",
    "reconnect_with",
    "wait_for_slices",
]

_HERE: Final = "shared_pathways_service.elastic"
_HOMES: Final = {
    "Attempt": f"{_HERE}.attempt",
    "Batches": f"{_HERE}.data",
    "CheckpointError": f"{_HERE}.checkpoint_errors",
    "CheckpointMismatch": f"{_HERE}.checkpoint_errors",
    "CheckpointNotFound": f"{_HERE}.checkpoint_errors",
    "Checkpoints": f"{_HERE}.checkpoints",
    "CheckpointsBusy": f"{_HERE}.checkpoint_errors",
    "ElasticRetryLimit": f"{_HERE}.manager",
    "ElasticRuntimeError": f"{_HERE}.errors",
    "Manager": f"{_HERE}.manager",
    "Options": "shared_pathways_service.core.elastic.options",
    "Progress": f"{_HERE}.progress",
    "ScaleUpSignalError": f"{_HERE}.errors",
    "get_active_slice_indices": f"{_HERE}.health_checks",
    "get_slice_to_devices": f"{_HERE}.health_checks",
    "is_error_due_to_slice_down": f"{_HERE}.health_checks",
    "reconnect_with": f"{_HERE}.reconnect",
    "wait_for_slices": f"{_HERE}.health_checks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
