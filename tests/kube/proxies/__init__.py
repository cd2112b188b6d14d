"""Connections through the proxies of networks."""
