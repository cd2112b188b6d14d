"""Derived from the history of decisions: explanations, expected waits, usage."""
