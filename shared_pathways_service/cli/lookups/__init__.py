"""Finds and reads data for commands: services, sessions, logs, status, checks."""
