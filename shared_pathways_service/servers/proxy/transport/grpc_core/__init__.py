"""The proxy's calls on the server of `servers.grpc_core`.

- `core_calls`: the route of each method; `core_sessions`, `core_callbacks`: its streams

`--transport=public` (or `SPS_TRANSPORT`) disables it.
"""
