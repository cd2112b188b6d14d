"""Commands for a user's own connections: run, list, status, logs, delete, reap, doctor."""
