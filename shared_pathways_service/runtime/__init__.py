"""Shared code of clients and servers on one machine: settings, processes, logs, limits.

- `settings`: settings from arguments, variables, the profile, or defaults; `setting_readers`
  parses their values
- `processes`: identifies and signals processes
- `glog`, `terminal`: logs of servers, and output for people
- `backoff`: pauses between tries to connect again
- `descriptors`, `allocator`: limits and memory of a process
- `listeners`: TCP, of both families
- `last_requests`: the record of what a process was doing when it ended
- `embedded`: the files of the embedded service

Independent of JAX and, except for `embedded`, of services and slices.
"""
