"""The resource manager's decisions: who gets which slices, as events in and instructions out.

`core` is the entry point: `ResourceManagerCore`. `worker_events` and `tenant_events` handle events,
`recovery` restores the state after a restart, and `queue_notices` notifies waiting tenants. The
state is in `book`, each policy in `policies`; `history` explains past decisions. No gRPC, disk or
clock: those are in `servers.resource_manager`.
"""
