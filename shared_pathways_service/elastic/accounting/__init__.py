"""Accounts for the time of a run. Pure.

- `history`: the events of a run on one time axis
- `account`: assigns every second to a cause
- `incidents`: interruptions and times to repair
- `goodput`: how the time was spent
- `timeline`, `console_lines`: output for people and scripts
"""
