"""Pure code: decisions, parsing, state machines.

No I/O, clock, thread, gRPC, Kubernetes or JAX is imported here: time is an argument, and what is to
be done comes out as data. Whatever acts on it lives in the layers above.
"""
