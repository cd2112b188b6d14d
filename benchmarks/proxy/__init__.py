"""The proxy's speed: one table, every figure with its limit from the same run."""
