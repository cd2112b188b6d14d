"""Decisions of elastic training. Pure.

- `options`: the options
- `triage`: classifies errors by cause
- `slice_health`: decides which slices may be used
- `gate`: decides when and on which slices an attempt begins
- `due`: decides when a checkpoint is due
"""
