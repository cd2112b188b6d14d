"""Clients that speak the proxy's protocol without JAX."""
