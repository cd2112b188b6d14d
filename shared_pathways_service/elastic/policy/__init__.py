"""Decisions of elastic training: options, triage, slice health, when to save. Pure."""
