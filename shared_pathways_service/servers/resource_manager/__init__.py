"""The resource manager (RM) as a process: gRPC and SQLite around the pure core in `scheduling`.

`authority` owns the core and carries out what it says; `service` turns calls into events; `wire`
translates messages, and refuses bad ones; `store` keeps what was answered. No decision on who gets
what is made here.
"""
