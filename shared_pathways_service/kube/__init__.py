"""Access to a cluster's API server: credentials, requests, watches and WebSockets.

Objects of the API are plain JSON-like mappings. Decisions about them are in `manifests` and
`cluster_state`; `tunnel` handles the bytes of a port-forward.
"""
