"""The loop and its attempts: data, barriers, where an attempt begins."""
