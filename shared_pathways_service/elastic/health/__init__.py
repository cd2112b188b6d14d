"""Probes and watches slices; `elastic.policy` draws conclusions from the results."""
