"""Kills the resource manager at random moments, under load."""
