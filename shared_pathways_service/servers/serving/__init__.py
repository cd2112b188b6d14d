"""Shared code of all servers: listening, admission, connections, process lifecycle."""
