"""Reads a cluster's objects and logs: services, readiness, proxies, placement.

- `services`, `overview`: services of a namespace, and the description of one
- `readiness`, `pods`: the state of a service and its pods
- `proxy_jobs`, `proxy_progress`: proxies and their Jobs
- `placement`, `claims`: slices that proxies hold
- `log_lines`, `log_cursor`: lines of logs, and the position in a log

Pure: plain data in, findings out. `kube` makes requests, and `manifests` has created objects.
"""
