"""Reads a cluster's objects and logs: services, readiness, proxies, placement.

Pure: plain data in, findings out. `kube` makes requests, and `manifests` has created objects.
"""
