"""A gRPC server on grpcio's private core, fenced off in this folder.

`core_check` tries it before it is used; `--transport=public` (or `SPS_TRANSPORT`) switches it off.
"""
