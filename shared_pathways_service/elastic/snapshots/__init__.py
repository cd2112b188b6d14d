"""Snapshots in memory.

- `client_memory`: in the client's process
- `peer_memory`: on the slices
- `slots`: two slots for the last good snapshot and the next one
"""
