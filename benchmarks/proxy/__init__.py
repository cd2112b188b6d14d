"""The proxy's speed: one table, every figure beside its limit measured in the same run."""
