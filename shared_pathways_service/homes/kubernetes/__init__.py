"""The home in a cluster: a proxy is a Job, reached through the API server.

- `home`: the implementation of the interface
- `preflight`, `permissions_review`: checks before anything is created
- `proxy_objects`, `job_inputs`: the proxy's Job and Secret
- `proxy_watch`, `placement_watch`: the proxy and its slices
- `service_view`, `service_watch`: the service
- `deadline`, `release`: the end of a proxy
- `cluster_jobs`, `job_submission`, `job_output`, `workdir_archive`: submitted jobs
- `dial`, `manager_link`: connections to the proxy and to the resource manager

Decisions are pure code in `manifests` and `cluster_state`.
"""
