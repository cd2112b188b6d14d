"""Flags of the servers: the parser, and the flags that more than one process sets.

These are policies, limits of a proxy, and the supervisor's flags, which are options of `sps serve`
too. Flags of one server only are in `flags.py` of its folder.
"""
