"""One connection as its user sees it: an agent, and JAX switched over to the proxy it reached.

`connection` is the object from its start to its close, `known` and `views` what it shows,
`jax_side` JAX of this process, `leaving` which error a block ends with, `one_live` the rule of one
connection per process.
"""

from __future__ import annotations

from shared_pathways_service.connection.connection import Connection
from shared_pathways_service.connection.views import ConnectedSlice, ConnectionStatus

__all__ = ["ConnectedSlice", "Connection", "ConnectionStatus"]
