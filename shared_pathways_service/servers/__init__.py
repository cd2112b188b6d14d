"""The servers: resource manager, worker, proxy, and the supervisor of the embedded service.

No server imports another; `serving` is shared code. Clients (homes, agent, `sps`) do not import
servers: shared code of both sides is in `runtime`, `flags`, `metrics` and `protocol`.
"""
