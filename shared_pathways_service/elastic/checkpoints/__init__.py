"""Checkpoints on disk or in an object store: files, arrays, locks, retention."""
