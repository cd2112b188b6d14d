"""The user's connection: starts an agent, and switches JAX to the proxy that it creates.

`connection` has its start and close, `known` and `views` its readable state, `jax_side` JAX of this
process, `leaving` the error that ends a block, `one_live` the rule of one connection per process.
"""

from __future__ import annotations

from shared_pathways_service.connection.connection import Connection
from shared_pathways_service.connection.views import ConnectedSlice, ConnectionStatus

__all__ = ["ConnectedSlice", "Connection", "ConnectionStatus"]
