"""Measurements: as OpenMetrics text, as messages of a proxy, and over HTTP.

Who counts what is not here: each server and the agent keep their own counters.
"""
