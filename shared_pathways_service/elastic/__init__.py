"""Elastic training: after the loss of a slice, training rewinds and continues in the same process.

    from shared_pathways_service import elastic

    def train(attempt: elastic.Attempt): ...

    manager = elastic.Manager(options=elastic.Options(elastic_min_slice_count=2), directory="run")
    manager.run(train)

- `manager`: the public manager; `training` runs the training function
- `policy`, `accounting`: decisions, and the accounting of a run's time; pure
- `health`, `slices`, `waiting`: probes slices, groups devices, waits with deadlines
- `checkpoints`, `snapshots`, `progress`, `run_states`, `trees`: states to continue with
- `run_ledger`, `sinks`, `console`: events on disk and on the console
- `reconnect`: continues on a new proxy

Works on any JAX devices that can be grouped into slices. Names are imported on first use: reading a
run's ledger needs no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
    from shared_pathways_service.elastic.checkpoints.errors import (
        CheckpointError,
        CheckpointMismatch,
        CheckpointNotFound,
        CheckpointsBusy,
    )
    from shared_pathways_service.elastic.errors import ElasticRuntimeError, ScaleUpSignalError
    from shared_pathways_service.elastic.health.health_checks import (
        get_active_slice_indices,
        get_slice_to_devices,
        is_error_due_to_slice_down,
        wait_for_slices,
    )
    from shared_pathways_service.elastic.manager import ElasticRetryLimit, Manager
    from shared_pathways_service.elastic.policy.options import Options
    from shared_pathways_service.elastic.progress import Progress
    from shared_pathways_service.elastic.reconnect import reconnect_with
    from shared_pathways_service.elastic.training.attempt import Attempt
    from shared_pathways_service.elastic.training.data import Batches

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

_HOMES: Final = {
    "Attempt": "shared_pathways_service.elastic.training.attempt",
    "Batches": "shared_pathways_service.elastic.training.data",
    "CheckpointError": "shared_pathways_service.elastic.checkpoints.errors",
    "CheckpointMismatch": "shared_pathways_service.elastic.checkpoints.errors",
    "CheckpointNotFound": "shared_pathways_service.elastic.checkpoints.errors",
    "Checkpoints": "shared_pathways_service.elastic.checkpoints.checkpoints",
    "CheckpointsBusy": "shared_pathways_service.elastic.checkpoints.errors",
    "ElasticRetryLimit": "shared_pathways_service.elastic.training.budget",
    "ElasticRuntimeError": "shared_pathways_service.elastic.errors",
    "Manager": "shared_pathways_service.elastic.manager",
    "Options": "shared_pathways_service.elastic.policy.options",
    "Progress": "shared_pathways_service.elastic.progress",
    "ScaleUpSignalError": "shared_pathways_service.elastic.errors",
    "get_active_slice_indices": "shared_pathways_service.elastic.health.health_checks",
    "get_slice_to_devices": "shared_pathways_service.elastic.health.health_checks",
    "is_error_due_to_slice_down": "shared_pathways_service.elastic.health.health_checks",
    "reconnect_with": "shared_pathways_service.elastic.reconnect",
    "wait_for_slices": "shared_pathways_service.elastic.health.health_checks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
