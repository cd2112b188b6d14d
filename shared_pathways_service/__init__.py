"""Slices of a long-lived, multi-tenant Pathways service for JAX programs.

All public names are here or in `isc_pathways`, the module's name in upstream's documentation.

    from shared_pathways_service import isc_pathways

    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
        ...  # plain JAX

- `isc_pathways`, `submission`, `errors`, `events`: the public interface
- `api`, `connection`, `jax_client`: a request, a connection, and JAX on its proxy
- `agent`, `session`, `homes`: creates and deletes a proxy where the service lives
- `scheduling`, `servers`, `flags`: decides who gets which slices, and serves them
- `elastic`: training that survives the loss of slices
- `cli`, `operations`, `serve`: commands
- `magics`: ``%sps``, the commands in a notebook
- `run_workload`, `deploy_pathways_service`: commands with upstream's flags
- `testing`: faults, stand-ins and the testbed, also for users' tests

docs/architecture.md has the other folders. Importing this imports neither JAX nor gRPC, and starts
nothing: names are looked up on first use, because the servers import this package too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shared_pathways_service.version import __version__

if TYPE_CHECKING:
    from shared_pathways_service import isc_pathways
    from shared_pathways_service.connection import Connection
    from shared_pathways_service.errors import (
        AccessDenied,
        CapacityError,
        CleanupError,
        ConnectionClosed,
        CredentialsMismatch,
        InvalidRequestError,
        PlacementTimeout,
        PreflightError,
        ProxyFailed,
        ServiceNotFound,
        ServiceNotReady,
        SharedPathwaysError,
        SliceLost,
        SlicesTaken,
        TunnelError,
        VersionSkew,
    )
    from shared_pathways_service.events import Event
    from shared_pathways_service.isc_pathways import connect
    from shared_pathways_service.submission import Job, JobStatus, submit

__all__ = [
    "AccessDenied",
    "CapacityError",
    "CleanupError",
    "Connection",
    "ConnectionClosed",
    "CredentialsMismatch",
    "Event",
    "InvalidRequestError",
    "Job",
    "JobStatus",
    "PlacementTimeout",
    "PreflightError",
    "ProxyFailed",
    "ServiceNotFound",
    "ServiceNotReady",
    "SharedPathwaysError",
    "SliceLost",
    "SlicesTaken",
    "TunnelError",
    "VersionSkew",
    "__version__",
    "connect",
    "isc_pathways",
    "submit",
]

_HOMES = {
    "Connection": "connection",
    "Event": "events",
    "Job": "submission",
    "JobStatus": "submission",
    "connect": "isc_pathways",
    "submit": "submission",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "isc_pathways":
        return importlib.import_module(f"{__name__}.isc_pathways")
    module = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Adds the magic ``%sps`` to IPython; called by ``%load_ext shared_pathways_service``."""
    importlib.import_module(f"{__name__}.magics.sps_magic").load(shell)
