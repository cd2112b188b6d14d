"""Finds and reads data for commands.

- `sessions`: this user's sessions
- `embedded_status`, `cluster_status`: the status of a service
- `local_checks`, `cluster_checks`: the checks of `sps doctor`
- `manager_calls`, `embedded_link`, `open_cluster`: access to services
- `log_files`, `pod_logs`: logs
- `completion`: names in a shell
"""
