"""The resource manager (RM) as a process: gRPC and SQLite around the pure core in `scheduling`.

`authority` owns the core and carries out its instructions; `service` turns calls into events;
`wire` validates and translates messages; `store` keeps the state on disk. `scheduling` decides
about slices.
"""
