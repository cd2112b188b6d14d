"""Kills a process that trains at random moments."""
