"""The supervisor of the embedded service: starts, watches and ends the service's processes.

`supervisor` combines the parts; `fleet` runs resource manager and workers, `proxies` the tenants'
proxies; `service` answers calls; `child` is one process, and `command_lines` has the command lines.
`occupancy` and `restarts` decide, without I/O. The files by which clients find the service are in
`runtime.embedded`. The resource manager decides about placement.
"""
