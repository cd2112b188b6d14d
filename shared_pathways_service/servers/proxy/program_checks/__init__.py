"""Checks clients' programs before XLA sees them: XLA ends the process on some."""
