"""A gRPC server on grpcio's private core, isolated in this folder.

- `core_server`: the server; `core_call`: one call of it
- `core_calls`, `core_sessions`, `core_callbacks`: the proxy's calls
- `core_check`: tests the installed grpcio's core before use

`--transport=public` (or `SPS_TRANSPORT`) disables it.
"""
