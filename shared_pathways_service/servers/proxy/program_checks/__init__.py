"""Checks of clients' programs: refuses those that would end XLA's process."""
