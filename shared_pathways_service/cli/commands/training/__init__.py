"""Commands for elastic training: report, checkpoints, chaos."""
