"""Commands about elastic training: report, checkpoints, chaos."""
