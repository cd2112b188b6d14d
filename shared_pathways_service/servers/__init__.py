"""The servers: resource manager, worker, executor, proxy, and the embedded service's supervisor.

No server imports another. They share `serving`; those that compute also share `devices`, the
interface of what computes, and `xla`, which computes in their own process. Clients (homes, agent,
`sps`) do not import servers: shared code of both sides is in `runtime`, `flags`, `metrics` and
`protocol`.
"""
