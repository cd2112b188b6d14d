"""The servers: resource manager, worker, proxy, and the supervisor of the embedded service.

No server imports another. They share `serving`; those that compute also share `devices`, the
interface of what computes, and `xla`, which computes in their own process. Clients (homes, agent,
`sps`) do not import servers: shared code of both sides is in `runtime`, `flags`, `metrics` and
`protocol`.
"""
