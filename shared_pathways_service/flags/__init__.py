"""Flags of the servers: the parser, and flags that several processes share.

- `parsing`: the parser
- `servers`: flags of all servers
- `policies`: the resource manager's policies
- `limits`: limits of a proxy
- `tenants`: a tenant's request
- `supervisor`: the supervisor's flags, which are also options of `sps serve`

Flags of a single server are in `flags.py` of its folder.
"""
