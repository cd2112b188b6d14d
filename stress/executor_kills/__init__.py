"""Executors, workers and hosts die or hang while a program computes on them."""
