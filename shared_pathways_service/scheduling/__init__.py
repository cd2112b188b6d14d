"""The resource manager's decisions: events go in, instructions come out.

- `core`: `ResourceManagerCore`, the entry point
- `tenant_events`, `worker_events`: handlers of events
- `recovery`: restores the state after a restart
- `queue_notices`: notifies waiting tenants
- `event_log`: records events, and replays them
- `book`: the state; `policies`: what to change; `history`: explanations of past decisions

gRPC, disk and clock are in `servers.resource_manager`.
"""
