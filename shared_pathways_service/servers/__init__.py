"""The servers of the service: resource manager, worker, proxy, and the embedded supervisor.

Each is a package with a ``__main__``; none imports another. What they share as processes (flags,
log form, life with a parent) is in `process`.
"""
