"""Forwards a local socket to a port of a pod, through the API server's port-forward.

The tunnel is given connections to the API server: addresses and credentials are in `kube`.
"""
