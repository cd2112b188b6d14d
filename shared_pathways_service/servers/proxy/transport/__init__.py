"""The proxy's calls on the wire: gRPC by grpcio's public API, or by its core.

Threads for calls and the admission of calls without a token are here; what a call means is in
`session`.
"""
