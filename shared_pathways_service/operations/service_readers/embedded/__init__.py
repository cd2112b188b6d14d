"""Reads the embedded service of this user: its status, checks, counters and logs."""
