"""The supervisor of the embedded service: starts, watches and ends the service's processes.

- `supervisor`: combines the parts
- `fleet`: the resource manager and the workers; `proxies`: the tenants' proxies
- `submitted_jobs`: programs that outlive their submitters
- `service`: the gRPC service
- `child`, `command_lines`: one process, and the command lines
- `occupancy`, `restarts`, `job_decisions`: decisions, without I/O

`runtime.embedded` has the files by which clients find the service. The resource manager decides
about placement.
"""
