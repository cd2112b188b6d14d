"""The worker's process: one per host of a slice, whose life is the slice's health.

`manager_session` holds the connection to the resource manager; `flags` declares the flags of
Google's image and ours. Our workers do not use devices: the proxy computes.
"""
