"""Snapshots in memory: of this process, or of the slices."""
