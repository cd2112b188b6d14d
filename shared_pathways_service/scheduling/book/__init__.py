"""The authoritative state: slices, tenants, assignments, queues, and records of changes.

`scheduling.policies` decides what to change.
"""
