"""`scripts/test`: runs the tests in phases, and what failed again, alone; keeps evidence."""
