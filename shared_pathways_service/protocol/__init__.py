"""The gRPC protocols: .proto files, the code generated from them, and helpers.

- `ifrt`: the IFRT proxy protocol
- `auth`: tokens
- `versions`: the protocol versions of two sides
- `grpc_errors`: translates gRPC statuses and this package's errors
- `tenant_requests`, `event_messages`: converters of requests and events

`scripts/generate_protos` makes the generated modules, which are committed; a test compares them.
"""
