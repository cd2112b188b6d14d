"""The places where a service runs: one interface and its implementations.

- `base`: the interface
- `embedded`: processes of this machine
- `kubernetes`: Jobs in a cluster
- `pod`: the proxy in a submitted job's own pod, for its program
- `job_home`: the interface for submitted jobs
- `choice`: selects a home by name
- `own_loop`: runs coroutines for callers without a loop
- `manager_news`: a resource manager's events across its restarts
"""
