"""The training loop and its attempts: data, barriers, restoring, profiling."""
