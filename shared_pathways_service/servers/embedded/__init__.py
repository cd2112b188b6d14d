"""The supervisor of the embedded service: who starts, watches and ends its processes.

`supervisor` puts the parts together; `fleet` keeps resource manager and workers up, `proxies` the
tenants' proxies; `service` answers calls; `child` is one process of them, `commands` their command
lines. `occupancy` and `restarts` decide, without I/O. `state` and `paths` are what clients need to
find the service. No placement is decided here: that is the resource manager's.
"""
