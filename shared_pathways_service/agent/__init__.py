"""The agent: one process per connection, which owns the life of its proxy.

Contains the process, its messages to the client, its journal, and the runner that drives the
session's state machine (`session.state_machine`) over a home. The client's side uses `client` and
`journal`. Decisions are in `session`; JAX is not used here.
"""
