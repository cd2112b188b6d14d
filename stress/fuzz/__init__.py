"""Sends random requests to a proxy."""
