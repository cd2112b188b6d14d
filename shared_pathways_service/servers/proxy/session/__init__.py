"""A client's session: requests in, answers out, handles, buffers, counters."""
