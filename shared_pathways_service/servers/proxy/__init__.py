"""The proxy: the server side of JAX's IFRT proxy protocol, one process per tenant.

From the wire inwards: `transport` (gRPC), `session` (a client's calls, requests and answers),
`engine` (programs), `execution` (operations that settle once, on one executor per placement of a
slice) and `xla` (the devices). `program_checks` refuses programs that would crash XLA, and
`callbacks` lets programs call functions of their client. `main` is the process; `rm_link` follows
the slices' placements. The resource manager decides about placement, and workers check hosts'
health.
"""
