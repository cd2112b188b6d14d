"""Probes slices and watches them; `elastic.policy` decides what follows from the results."""
