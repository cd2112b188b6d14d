"""The resource manager's decisions: who gets which slices, as events in and instructions out.

`core` is the door: `ResourceManagerCore`. `worker_events` and `tenant_events` say what each event
means, `recovery` what follows a restart; the state is in `book`, each policy in `policies`, what
the history tells in `history`. No gRPC, no disk, no clock: those are `servers.resource_manager`.
"""
