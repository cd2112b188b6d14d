"""The proxy's calls on the wire: gRPC by grpcio's public API, or by its core.

- `grpc_transport`: serves the calls with one of two servers
- `public_server`: on grpcio's public API; `grpc_core`: on its private core
- `calls`: the methods, the same for both
- `transfers`: threads for uploads and downloads
- `late_requests`: limits calls without a token

`session` handles the calls themselves.
"""
