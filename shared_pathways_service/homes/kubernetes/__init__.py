"""The home in a cluster: a proxy is a Job, reached through the API server.

`home` is the interface's implementation; preflight, Job, deadline and the way to the resource
manager have modules of their own. What is decided is pure: `manifests`, `cluster_state`.
"""
