"""Profiles of this proxy and its executors, for their tenant.

- `profile_stream`: the stream of one profile, from its start to its files
- `profile_run`: one profile: its processes, its deadline, its bytes; `profiles`: one at a time
- `recorded_process`: one process that is profiled: `own_process` or `profiled_executor`
- `clocks`, `planes` and `run_devices`: pure: offsets of clocks, planes as they are written, and the
  devices of runs
"""
