"""A gRPC server on grpcio's private core, isolated in this folder.

`core_check` tests it before use; `--transport=public` (or `SPS_TRANSPORT`) disables it.
"""
