"""The places where a service runs: the interface (`base`) and its two implementations.

`embedded`: processes of this machine. `kubernetes`: Jobs in a cluster.
"""
