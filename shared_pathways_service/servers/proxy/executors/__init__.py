"""The engine `distributed`: devices of other processes, the executors.

- `executors`: all executors of this proxy
- `placed_executors`: executors that come and go with placements
- `executors_of_flags`: which of the two a proxy has
- `opened_sets`: the clients that they have opened, one for each set of slices
- `host_addresses`: where they find each other
- `executor_client`, `executor_programs`: `DeviceClient` and `Executable` on executors
- `remote_arrays`: arrays on executors
- `gathering`: arrays made of parts on other executors
- `executor_times`, `run_comparison`, `slow_events`: how long programs take, and which executors are
  slow
- `executor_link`: commands to an executor, and its reports
- `executor_streams`: chooses the streams of links: `core_stream`, `public_stream`
"""
