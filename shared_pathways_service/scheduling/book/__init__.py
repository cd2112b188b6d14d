"""The authoritative state: slices, tenants, assignments, queues, and records of changes.

What is decided with it is in `scheduling.policies`.
"""
