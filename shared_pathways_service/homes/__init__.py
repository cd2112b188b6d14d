"""Where the service lives: the interface (`base`) and its two implementations.

`embedded`: processes of this machine. `kubernetes`: Jobs in a cluster.
"""
