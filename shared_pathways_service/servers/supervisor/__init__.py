"""The supervisor of the embedded service: it starts, watches and ends the service's processes.

`supervisor` puts the parts together; `fleet` keeps resource manager and workers up, `proxies` the
tenants' proxies; `service` answers calls; `child` is one process of them, `command_lines` their
command lines. `occupancy` and `restarts` decide, without I/O. What clients need to find the service
(names of files, state file, logs) is in `runtime.embedded`. The resource manager decides about
placement.
"""
