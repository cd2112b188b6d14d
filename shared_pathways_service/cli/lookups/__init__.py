"""Finds and reads what commands need: services, sessions, logs, status, checks."""
