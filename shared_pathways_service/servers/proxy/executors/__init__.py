"""The engine `distributed`: devices of other processes, the executors.

- `executors`: all executors of this proxy
- `executor_client`, `executor_programs`: `DeviceClient` and `Executable` on executors
- `remote_arrays`: arrays on executors
- `executor_link`: the stream to an executor
"""
