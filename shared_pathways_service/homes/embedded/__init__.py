"""The home on this machine: finds or starts the embedded service, which runs proxies.

- `home`: the implementation of the interface
- `discovery`: finds, joins and starts the service
- `slice_readiness`: waits until the slices are ready
"""
