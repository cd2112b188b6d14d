"""The worker as a process: one per host of a slice, whose life is the slice's health.

`manager_session` keeps the connection to the resource manager; `flags` reads the flags of Google's
image and ours. Our workers use no device: the proxy computes.
"""
