"""Profiles of this proxy and its executors, for their tenant.

- `profile_stream`: the stream of one profile, from its start to its files
- `profile_run`: one profile: its processes, its deadline, its bytes; `profiles`: one at a time
- `recorded_process`: a process that is profiled; `own_process`, `profiled_executor`: the two kinds
- `clocks`, `planes` and `run_devices`: pure: offsets of clocks, and planes as they are written
"""
