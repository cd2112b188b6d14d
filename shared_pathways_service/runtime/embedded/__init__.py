"""The embedded service's files: names, state file, log directories, environment of servers.

Its supervisor (`servers.supervisor`) writes them; homes and commands read them.
"""
