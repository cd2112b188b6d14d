"""Clients of a resource manager: calls and streams, when they are retried, what their errors mean.

`blocking_stream` keeps the stream of one process (worker, proxy) open on a thread, `event_stream`
follows events in asyncio. Both reconnect by the policy in `backoff`, by the table of final errors
in `failures`, and with the settings in `channels`.
"""
