"""The agent: one process per connection, which creates and deletes the connection's proxy.

Contains the process, its messages to the client, its journal, and the runner that drives the
session's state machine (`session.state_machine`) over a home. The client uses `client` and
`journal`. Decisions are made in `session`; the agent does not use JAX.
"""
