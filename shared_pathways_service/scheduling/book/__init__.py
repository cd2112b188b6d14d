"""The authoritative state: slices, tenants, assignments, queues, and records of changes.

- `ledger`: changes the state; based on `assignments` (placements) and `journal` (persistence)
- `records`: workers, slices, tenants, pools; `lines`: sorted queues
- `actions`: changes that policies request; `changes`: changes that policies consume
- `decisions`: the records that make up the history
- `persisted`: the state on the disk
- `speaker`: messages to tenants, workers and watchers
- `holdings`: the status report
- `messages`: events and instructions of the core
"""
