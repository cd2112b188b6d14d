"""The proxy's calls on the wire: gRPC by grpcio's public API, or by its core.

Contains the threads for calls and the admission of calls without a token. `session` handles the
calls themselves.
"""
