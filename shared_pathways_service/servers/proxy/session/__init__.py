"""A client's session: requests, responses, handles, host buffers, counters."""
