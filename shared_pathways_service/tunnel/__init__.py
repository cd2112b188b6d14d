"""Forwards a local socket to a port of a pod, through the API server's port-forward.

The caller connects the tunnel to the API server; `kube` has addresses and credentials.
"""
