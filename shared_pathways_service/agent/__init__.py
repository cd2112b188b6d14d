"""The agent: one process a connection, which owns the life of its proxy.

Here live the process, its messages with the client, its journal, and what runs the session's
machine (`session.state_machine`) over a home. No decision lives here, and no JAX. `client` and
`journal` are what the client's side uses.
"""
