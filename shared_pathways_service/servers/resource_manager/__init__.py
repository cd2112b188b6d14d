"""The resource manager (RM) as a process: gRPC and SQLite around the pure core in `scheduling`.

`authority` owns the core and carries out its instructions; `service` turns calls into events;
`wire` translates messages, and refuses bad ones; `store` keeps the state on disk. Decisions about
slices are in `scheduling`.
"""
