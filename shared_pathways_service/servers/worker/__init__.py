"""The worker as a process: one a host of a slice, whose life is the slice's health.

`session` keeps the resource manager told; `flags` reads the flags of the real image and ours. No
device is touched here: with the open service the computing happens in the proxy.
"""
