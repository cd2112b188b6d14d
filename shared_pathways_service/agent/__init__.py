"""The agent: one process per connection, which creates and deletes the connection's proxy.

- `process`: the agent's process; `launch` starts it
- `runner`: drives the session's state machine (`session.state_machine`) over a home
- `messages`, `channel`: messages between client and agent
- `client`: the client's side of a session
- `journal`: objects to delete after a crash; `deletion` and `clean_up` delete them
- `metrics_sender`, `scraping`: a session's metrics

Decisions are in `session`; JAX is not used here.
"""
