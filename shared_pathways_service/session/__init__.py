"""One session, from the preflight to the deletion of its proxy: a pure state machine.

- `state_machine`: the decisions
- `messages`: its phases, inputs and outputs
- `view`: all that is known of the session
- `phase_deadlines`: the deadlines of its phases
- `failures`, `proxy_ends`: the error of a failed session
- `cloud_metrics`: the metrics to write

The agent (`agent`) carries out the outputs.
"""
