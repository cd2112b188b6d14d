"""A gRPC server on grpcio's private core, isolated in this folder (ADR 0056).

- `core_server`: a server; `core_call`: one call of it
- `core_writer`: sends the messages of a stream one at a time
- `slow_readers`: ended calls that are not read to their end yet
- `core_check`: tests the installed grpcio's core before use
"""
