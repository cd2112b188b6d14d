"""The table of time-outs, which `jax_client.standalone` copies beside these files."""

from __future__ import annotations

try:
    from shared_pathways_service.patience import timeouts
except ImportError:  # an interpreter without this package
    from . import timeouts  # type: ignore[attr-defined, no-redef]

__all__ = ["timeouts"]
