"""Checks clients' programs: refuses those that would crash XLA."""
