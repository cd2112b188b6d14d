"""Snapshots in memory: in the client's process, or on the slices."""
