"""Probes and watches slices; `elastic.policy` draws conclusions from the results.

- `probes`: probes slices concurrently, each with a deadline
- `slice_watch`: reports changes of slices' health
- `health_checks`: probes with the names of pathwaysutils
"""
