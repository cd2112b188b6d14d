"""Measurements: as OpenMetrics text, as messages of a proxy, and over HTTP.

The servers and the agent own the counters.
"""
