"""The places where a service runs: one interface and its two implementations.

- `base`: the interface
- `embedded`: processes of this machine
- `kubernetes`: Jobs in a cluster
- `choice`: selects a home by name
- `manager_news`: a resource manager's events across its restarts
"""
