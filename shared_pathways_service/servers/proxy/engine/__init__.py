"""Shared by all sessions: programs, the compiler, its cache."""
