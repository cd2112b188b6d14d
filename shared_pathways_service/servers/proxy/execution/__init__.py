"""Asynchronous work: operations, their values, and one executor per placement of a slice.

- `operations`, `values`: work, and its results
- `virtual_slices`: virtual slices and their placements
- `openings`: the time until a placement can compute
- `executor`: the thread of one placement, and several executors together
- `settling`: the end of operations
- `remap_plans`: arrays from other arrays' shards
"""
