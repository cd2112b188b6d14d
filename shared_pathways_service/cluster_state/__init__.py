"""What a cluster's objects and logs tell: services, readiness, proxies, placement.

Pure: plain data in, findings out. Requests are in `kube`, what is created is in `manifests`.
"""
