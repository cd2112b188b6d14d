"""A client's session: requests, responses, handles, host buffers, counters.

- `service`: the calls, independent of gRPC
- `session`: the handles, and the handling of requests in order
- `handlers`: the handler of each kind of request; `*_requests`: the handlers
- `colocated_programs`, `other_programs`: programs that are not XLA's
- `handshake`: opens a session
- `answers`: the queue of answers
- `buffers`, `buffer_streams`: host buffers
- `counters`, `request_counts`: counters
"""
