"""Reads services without a session, for commands: a folder for each home.

- `base`: the interface, which `embedded` and `kubernetes` implement
- `reader_choice`: creates the reader of a service
- `service_occupancy`: slices and tenants in the form of `sps status --json`
- `manager_calls`: calls of a resource manager
"""
