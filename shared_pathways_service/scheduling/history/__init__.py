"""Explanations, expected waits and usage, derived from the history of decisions.

- `explanations`: why a tenant waits, was moved, was refused, or ended
- `expectation`: expected waits of queued tenants
- `usage`: slice-seconds and waits over a time window
"""
