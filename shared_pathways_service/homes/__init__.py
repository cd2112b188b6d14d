"""Where the service lives: the interface (`base`), and its two implementations.

`embedded/`: processes of this machine. `kubernetes/`: Jobs of a cluster.
"""
