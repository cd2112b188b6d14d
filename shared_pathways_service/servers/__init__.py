"""The servers: resource manager, worker, proxy, and the supervisor of the embedded service.

No server imports another; what they share is in `serving`. Clients (homes, agent, `sps`) import
no server: what both sides need is in `runtime`, `flags`, `metrics` and `protocol`.
"""
