"""Reads a service in a cluster: its status, checks, proxies and logs."""
