"""Access to a cluster's API server: who we are there, requests, watches and WebSockets.

Objects of the API are plain JSON-like mappings. What is decided about them is in
`manifests` and `cluster_state`; what becomes of the bytes of a port-forward is in `tunnel`.
"""
