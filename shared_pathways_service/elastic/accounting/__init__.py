"""Accounts for the time of a run: history, incidents, goodput, timeline. Pure."""
