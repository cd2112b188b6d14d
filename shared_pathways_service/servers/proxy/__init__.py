"""The proxy: the server side of JAX's IFRT proxy protocol, one process a tenant.

From the wire inwards: `transport` (gRPC) over `service` (calls) over `session` (requests, in
`*_requests`) over `operations` (work that settles once) on `executor`s, one a placement of a slice
(`slices`), over `xla` (the devices). `rm_link` hears from the resource manager where slices are.
What lives elsewhere: who gets which slice (the resource manager), health of hosts (workers).
"""
