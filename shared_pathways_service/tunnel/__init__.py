"""The way from a local socket to a port of a pod, through the API server's port-forward.

It is given connections to the API server and knows neither addresses nor tokens; those are
`kube`'s.
"""
