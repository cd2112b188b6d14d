"""Checks of JAX on a proxy: its results must equal the CPU's."""
