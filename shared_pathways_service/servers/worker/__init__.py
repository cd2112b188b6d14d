"""The worker's process: one per host of a slice; the slice is healthy while its workers live.

- `manager_session`: the session with the resource manager
- `host_executors`, `executor_supervisor`, `executor_process`, `executor_output`: the executor of
  the slice's holder
- `flags`: the flags of Google's image, and ours

Workers do not use devices themselves: the proxy computes, or the executor.
"""
