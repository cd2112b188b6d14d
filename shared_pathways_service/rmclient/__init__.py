"""Clients of a resource manager: calls and streams, their retries, and their errors.

- `blocking_stream`: the stream of one process (worker, proxy), kept open on a thread
- `event_stream`: events in asyncio
- `unary_calls`: single calls
- `failures`: the table of final errors
- `channels`: gRPC settings
"""
