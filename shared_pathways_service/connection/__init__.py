"""A connection in the user's process: an agent, and JAX switched to the proxy that it reached.

- `connection`: the connection from its start to its close
- `request_attributes`, `reported_state`, `views`: its request, slices, devices, state and timings
- `jax_side`: switches JAX of this process
- `leaving`: selects the error with which a block ends
- `one_live`: the rule of one connection per process
- `progress_display`, `notebook`, `logging_lines`: progress for people
"""

from __future__ import annotations

from shared_pathways_service.connection.connection import Connection
from shared_pathways_service.connection.views import ConnectedSlice, ConnectionStatus

__all__ = ["ConnectedSlice", "Connection", "ConnectionStatus"]
