"""The home of a submitted job in a cluster: its pod has the proxy beside the program (ADR 110).

- `home`: the implementation of the interface
"""
