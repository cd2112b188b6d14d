"""The worker's process: one per host of a slice; the slice is healthy while its workers live.

- `manager_session`: the session with the resource manager
- `flags`: the flags of Google's image, and ours

Our workers do not use devices: the proxy computes.
"""
