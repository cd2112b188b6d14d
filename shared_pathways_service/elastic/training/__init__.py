"""The training loop and its attempts.

- `loop`: runs a training function, again after each slice event
- `attempt`: one attempt at training
- `data`: batches of a dataset
- `barrier`: a barrier that all slices must reach in time
- `restoring`: restores the newest state
- `faults`: finds failed slices in exceptions
- `run_report`: events of the run
"""
