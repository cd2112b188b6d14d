"""Measurements: as OpenMetrics text, as messages of a proxy, and over HTTP.

The counters themselves are in the servers and in the agent.
"""
