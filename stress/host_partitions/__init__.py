"""Partitions around the hosts of a tenant: see `__main__`."""
