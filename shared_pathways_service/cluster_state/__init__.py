"""Reads a cluster's objects and logs: services, readiness, proxies, placement.

Pure: plain data in, findings out. Requests are in `kube`; objects that are created, in `manifests`.
"""
