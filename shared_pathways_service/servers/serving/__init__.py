"""Shared code of all servers: listening, admission, connections, process lifecycle.

- `process`: the lifecycle of a server's process
- `listening`: sockets and ports
- `admission`, `connections`: limits of calls and connections
- `turns`: timeouts that ignore time in which the process was stopped
- `batches`: queued items as messages of streams
- `send_queue`, `flushing`: items and bytes that wait for their message
- `call_threads`: threads for calls
- `last_requests_file`: the record of requests that survives a crash
"""
