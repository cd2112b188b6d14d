"""The resource manager (RM) as a process: gRPC and SQLite around the core in `scheduling`.

- `authority`: owns the core, and carries out its instructions
- `service`: the gRPC service, which turns calls into events
- `wire`: translates messages, and refuses invalid ones
- `store`, `history_table`: the state and the history on disk
- `streams`, `outbox`: streams of workers and tenants
- `inquiries`, `status_report`: answers to questions

Decisions about slices are in `scheduling`.
"""
