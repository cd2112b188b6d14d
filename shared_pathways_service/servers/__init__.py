"""The servers of the service: resource manager, worker, proxy, and the embedded supervisor.

No server imports another; what they share is in `serving`. Clients (homes, agent, `sps`) import
none of them: what both sides need is in `runtime`, `flags`, `metrics` and `protocol`.
"""
