"""The home in a cluster: a proxy is a Job, reached through the API server.

`home` implements the interface. Preflight, Job, deadline and the connection to the resource manager
are in separate modules. Decisions are pure code in `manifests` and `cluster_state`.
"""
