"""Checks of JAX on a proxy: what it computes must be what the CPU computes."""
