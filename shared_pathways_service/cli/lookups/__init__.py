"""Finds and reads data for commands.

- `sessions`: this user's sessions
- `place_readers`: the reader of the service at a place (`operations.service_readers`)
- `completion`: names in a shell
"""
