"""Measurements: as OpenMetrics text, as messages of a proxy, and over HTTP.

- `families`: measurements as families of samples
- `exposition`: OpenMetrics text
- `http_server`: ``/metrics`` for a scraper
- `measurement_messages`: measurements of a proxy as messages

The counters themselves are in the servers and in the agent.
"""
