"""Access to a cluster's API server: credentials, requests, watches and WebSockets.

- `access`, `cluster`: the cluster and the way to its API server
- `kubeconfig`, `gke`, `in_cluster`: sources of addresses and credentials
- `tokens`, `google_tokens`, `exec_plugin`: tokens
- `api`, `single_requests`, `retry_rules`, `errors`: requests, retries, errors
- `watch`: objects as they change
- `drain`: cordons and drains nodes

API objects are plain mappings; decisions about them are in `manifests` and `cluster_state`.
"""
