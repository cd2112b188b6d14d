"""Finds and reads for commands: services, sessions, logs, status, checks."""
