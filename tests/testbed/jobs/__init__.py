"""Submitted jobs in a cluster."""
