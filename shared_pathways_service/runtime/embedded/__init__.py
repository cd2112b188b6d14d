"""The embedded service's files: names, state file, log directories, environment.

Its supervisor writes them, homes and commands read them. Its processes are in
`servers.supervisor`.
"""
