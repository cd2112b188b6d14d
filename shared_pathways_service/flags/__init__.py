"""Flags of the servers: the parser, and flags that several processes share.

The shared ones are policies, limits of a proxy, and the supervisor's flags, which are also options
of `sps serve`. Flags of a single server are in `flags.py` of its folder.
"""
