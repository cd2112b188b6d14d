"""Flags of the servers: how they are parsed, and those that starters of a server set too.

A server's own flags are in its package (`flags.py`); here are the parser, the policies and limits
that several servers share, and the supervisor's, which `sps serve` has as options.
"""
